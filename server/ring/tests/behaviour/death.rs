//! What others see of a process that is killed with a ring in full swing.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockstep_ring::net::{SocketOptions, listen, local_address, outgoing};
use lockstep_ring::{Completion, Token};

use crate::{run_until, small_ring};

/// Set for the process that is to be killed: whom it connects to.
const VICTIM: &str = "RING_TEST_VICTIM";

/// Election starts when the sockets of a dead leader say so, so they must say it soon.
#[test]
fn peers_of_a_killed_process_see_its_connections_end_within_moments() {
    if let Ok(address) = std::env::var(VICTIM) {
        be_the_victim(address.parse().expect("an address"));
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address").to_string();
    for _ in 0..5 {
        let mut victim = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "death::peers_of_a_killed_process_see_its_connections_end_within_moments"])
            .env(VICTIM, &address)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let (mut connection, _) = listener.accept().expect("the victim connects");
        let mut port = [0; 2];
        connection.read_exact(&mut port).expect("the victim says where it listens");
        let killed = Instant::now();
        victim.kill().expect("killed");
        // The end, or a reset.
        let seen = connection.read(&mut [0; 16]);
        let elapsed = killed.elapsed();
        assert!(matches!(seen, Ok(0) | Err(_)), "{seen:?}");
        assert!(elapsed < Duration::from_millis(500), "seen only after {elapsed:?}");
        victim.wait().expect("reaped");
        let port = SocketAddr::from(([127, 0, 0, 1], u16::from_le_bytes(port)));
        listen(port, 16, &SocketOptions::default()).expect("its port is free for the next start");
    }
}

fn be_the_victim(address: SocketAddr) -> ! {
    let ring = small_ring();
    let group = ring.add_buffer_group(4, 4096).expect("a group");
    let listener = listen("127.0.0.1:0".parse().expect("an address"), 16, &SocketOptions::default());
    let listener = listener.expect("a listener");
    let port = local_address(&listener).expect("its address").port();
    ring.accept_multishot(ring.adopt_socket(listener), Token(1));
    let socket = ring.adopt_socket(outgoing(address, None, &SocketOptions::default()).expect("a socket"));
    ring.connect(socket, address, Token(2));
    run_until(&ring, |ring, completion| {
        if let Completion::Connected { result, .. } = completion {
            result.expect("connected");
            ring.receive_multishot(socket, group, Token(3));
            ring.send(socket, port.to_le_bytes().to_vec(), Token(4));
        }
        None::<()>
    });
    unreachable!("killed before it loses its patience")
}
