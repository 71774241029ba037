//! One connection on a ring: what has come in, what waits to go out.
//!
//! Invariant: at most one send is in flight, and what gathers meanwhile goes out with the next.
//! Deliberately absent: what the bytes mean.

use lockstep_ring::{Ring, Socket, Token};
use lockstep_wire::frame::Assembler;

/// A connection.
pub(crate) struct Stream {
    socket: Socket,
    pub(crate) assembler: Assembler,
    /// What goes out with the next flush.
    pub(crate) out: Vec<u8>,
    spare: Vec<u8>,
    is_sending: bool,
}

impl Stream {
    pub(crate) fn new(socket: Socket) -> Stream {
        let (out, spare) = (Vec::new(), Vec::new());
        Stream { socket, assembler: Assembler::default(), out, spare, is_sending: false }
    }

    pub(crate) fn socket(&self) -> Socket {
        self.socket
    }

    /// Sends what waits, unless a send is in flight.
    pub(crate) fn flush(&mut self, ring: &Ring, token: Token) {
        if !self.is_sending && !self.out.is_empty() {
            self.is_sending = true;
            let bytes = std::mem::replace(&mut self.out, std::mem::take(&mut self.spare));
            ring.send(self.socket, bytes, token);
        }
    }

    /// Takes the buffer of a finished send back and goes on with what has gathered.
    pub(crate) fn on_sent(&mut self, ring: &Ring, mut buffer: Vec<u8>, token: Token) {
        buffer.clear();
        self.spare = buffer;
        self.is_sending = false;
        self.flush(ring, token);
    }
}
