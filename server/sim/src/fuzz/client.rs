//! A server that answers with anything: the client's core must bear it.
//!
//! Invariant checked: no panic; however odd the answers, the core comes to rest between two looks at the clock, and
//! whatever was asked ends by its timeout. Deliberately absent: what it should believe; a server that lies well enough
//! is believed.

use std::collections::BTreeSet;

use lockstep_client::core::{
    AcquireOptions, Action, CallId, ClientConfig, ClientCore, ConnectionId, Event, Outcome, Time,
};
use lockstep_wire::frame::{self, Assembler, HEAD_BYTES, Head};
use lockstep_wire::hello::HelloReply;
use lockstep_wire::request::{self, Mode};
use lockstep_wire::{CellId, Correlation, FencingToken, Nonce, Owner, SessionId};

use super::bend::bend;
use super::wire::examples;
use crate::random::Stream;

/// The cell that the examples are about.
const CELL: CellId = CellId(3);
/// Rounds of asking, answering and waiting.
const ROUNDS: u64 = 40;
/// Actions and events between two looks at the clock.
const STIR_MAX: usize = 10_000;
/// By then everything has had its timeout, however often it was put off.
const PATIENCE_MS: u64 = 600_000;

struct Scene {
    core: ClientCore,
    now: Time,
    connection: Option<ConnectionId>,
    /// What was asked on the connection: kind and correlation.
    asked: Vec<Head>,
    assembler: Assembler,
    /// Calls that have no outcome yet.
    open: BTreeSet<CallId>,
    granted: usize,
}

/// See the module.
pub(super) fn garbage(stream: &mut Stream) -> Result<(), String> {
    play(stream).map(drop)
}

/// Says how many acquires were granted.
fn play(stream: &mut Stream) -> Result<usize, String> {
    let config = ClientConfig::new(CELL, vec!["a:1".to_owned(), "b:1".to_owned()], "fuzz", stream.next_u64());
    let now = Time(1_000_000_000);
    let mut scene = Scene {
        core: ClientCore::new(config, now),
        now,
        connection: None,
        asked: Vec::new(),
        assembler: Assembler::default(),
        open: BTreeSet::new(),
        granted: 0,
    };
    let (session, call) = scene.core.open_session(5_000, Nonce([7; 16]), now);
    scene.open.insert(call);
    for _ in 0..ROUNDS {
        if stream.percent(30) {
            let options = AcquireOptions {
                name: "/ls/demo/job".to_owned(),
                owner: Owner(stream.between(1, 3)),
                mode: Mode::Exclusive,
                is_reentrant: stream.percent(50),
                wait_ms: stream.one_of(&[0, 5_000]),
                data: Vec::new(),
            };
            let call = scene.core.acquire(session, options, scene.now);
            scene.open.insert(call);
            if stream.percent(30) {
                // Nothing more is said of it.
                scene.core.cancel(call, scene.now);
                scene.open.remove(&call);
            } else if stream.percent(30) {
                let release = scene.core.release(call, scene.now);
                scene.open.insert(release);
            }
        }
        if stream.percent(20) {
            let check = scene.core.check_token("/ls/demo/job", FencingToken(3), SessionId(0), scene.now);
            let look = scene.core.get_lock("/ls/demo/job", scene.now);
            scene.open.extend([check, look]);
        }
        for _ in 0..stream.between(1, 4) {
            scene.stir(stream)?;
            scene.answer(stream);
        }
        scene.now = scene.now.plus_ms(stream.one_of(&[0, 1, 1, 50, 300, 2_000]));
    }
    let end = scene.now.plus_ms(PATIENCE_MS);
    while scene.now < end && !scene.open.is_empty() {
        scene.hang_up();
        scene.stir(stream)?;
        let next = scene.core.deadline().unwrap_or(end);
        scene.now = next.max(scene.now.plus_ms(1)).min(end);
    }
    if !scene.open.is_empty() {
        return Err(format!("after ten minutes these calls have no outcome: {:?}", scene.open));
    }
    Ok(scene.granted)
}

impl Scene {
    /// Lets the core do what it wants to.
    fn stir(&mut self, stream: &mut Stream) -> Result<(), String> {
        self.core.on_tick(self.now);
        for _ in 0..STIR_MAX {
            match self.core.poll_action() {
                Some(Action::Connect { connection, .. }) => {
                    if stream.percent(90) {
                        (self.connection, self.assembler) = (Some(connection), Assembler::default());
                        self.core.on_connected(connection, self.now);
                    } else {
                        self.core.on_connect_failed(connection, "refused", self.now);
                    }
                }
                Some(Action::Send { bytes, .. }) => self.note(&bytes),
                Some(Action::Disconnect { .. }) => self.forget(),
                None => {
                    while let Some(event) = self.core.poll_event() {
                        if let Event::Finished { call, outcome } = event {
                            self.open.remove(&call);
                            self.granted += usize::from(matches!(outcome, Outcome::Granted(_)));
                        }
                    }
                    return Ok(());
                }
            }
        }
        Err(format!("{STIR_MAX} actions at one moment"))
    }

    fn note(&mut self, mut bytes: &[u8]) {
        while let Ok(Some(frame)) = self.assembler.next(&mut bytes, usize::MAX) {
            self.asked.push(frame.head);
        }
    }

    fn forget(&mut self) {
        self.connection = None;
        self.asked.clear();
    }

    fn hang_up(&mut self) {
        if let Some(connection) = self.connection {
            self.forget();
            self.core.on_disconnected(connection, "gone", self.now);
        }
    }

    /// Answers what was asked, more or less; sometimes says what nobody asked for.
    fn answer(&mut self, stream: &mut Stream) {
        for asked in std::mem::take(&mut self.asked) {
            let fitting: Vec<&Vec<u8>> = examples()
                .iter()
                .filter(|example| kind_of(example) == asked.kind | request::kind::REPLY)
                .collect();
            if fitting.is_empty() || stream.percent(10) {
                continue;
            }
            // The first example of a kind is that of success.
            let place = if stream.percent(80) { 0 } else { stream.place(fitting.len()) };
            let body = match (asked.kind, place) {
                (request::kind::HELLO, 0) => leaders_welcome(fitting[0]),
                _ => fitting[place][HEAD_BYTES..].to_vec(),
            };
            // A welcome must mostly be one, or nothing else is ever tried.
            let is_bent = stream.percent(if asked.kind == request::kind::HELLO { 3 } else { 20 });
            self.say(asked.kind | request::kind::REPLY, asked.correlation, body, is_bent, stream);
        }
        if stream.percent(10) {
            let example = &examples()[stream.place(examples().len())];
            let correlation = Correlation(stream.below(20));
            self.say(kind_of(example), correlation, example[HEAD_BYTES..].to_vec(), true, stream);
        }
    }

    fn say(
        &mut self,
        kind: u16,
        correlation: Correlation,
        mut body: Vec<u8>,
        is_bent: bool,
        stream: &mut Stream,
    ) {
        let Some(connection) = self.connection else { return };
        if is_bent {
            bend(&mut body, &[], stream);
        }
        let mut bytes = Vec::new();
        frame::encode(&mut bytes, Head { kind, cell: CELL, correlation }, |out| out.extend_from_slice(&body));
        self.core.on_bytes(connection, &bytes, self.now);
    }
}

/// The example's member says that it leads itself.
fn leaders_welcome(example: &[u8]) -> Vec<u8> {
    let welcome = HelloReply::decode(&example[HEAD_BYTES..]).expect("an example is valid");
    let mut body = Vec::new();
    HelloReply { leader: welcome.node, ..welcome }.put(&mut body);
    body
}

fn kind_of(example: &[u8]) -> u16 {
    u16::from_le_bytes([example[8], example[9]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Concern;

    #[test]
    fn the_odd_server_is_believed_often_enough_to_matter() {
        let grants = (0..300).map(|case| play(&mut Stream::new(case, Concern::Fuzz, 99)).expect("borne"));
        let granted: usize = grants.sum();
        assert!(granted > 100, "{granted}");
    }
}
