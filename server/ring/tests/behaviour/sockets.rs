//! Accepting, receiving, sending, connecting, closing.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use lockstep_ring::net::{SocketOptions, listen, local_address, outgoing, peer_address};
use lockstep_ring::{Completion, Ring, Socket, Token};

use crate::{PATIENCE, run_until, small_ring};

const ACCEPT: Token = Token(1);
const RECEIVE: Token = Token(2);
const SEND: Token = Token(3);
const CLOSE: Token = Token(4);
const CONNECT: Token = Token(5);

fn listener(ring: &Ring) -> (Socket, SocketAddr) {
    let address = "127.0.0.1:0".parse().expect("an address");
    let fd = listen(address, 128, &SocketOptions::default()).expect("a listener");
    let address = local_address(&fd).expect("its address");
    (ring.adopt_socket(fd), address)
}

/// A connection accepted by the ring, and its other end.
fn connection(ring: &Ring) -> (Socket, TcpStream) {
    let (listener, address) = listener(ring);
    ring.accept(listener, ACCEPT);
    let client = TcpStream::connect(address).expect("connects");
    let accepted = run_until(ring, |_, completion| match completion {
        Completion::Accepted { token: ACCEPT, fd, is_armed: false } => Some(fd),
        other => panic!("unexpected {other:?}"),
    });
    assert_eq!(peer_address(&accepted).expect("a peer"), client.local_addr().expect("an address"));
    (ring.adopt_socket(accepted), client)
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len)
        .map(|position| u8::try_from((position * 7 + position / 251 + salt) % 256).expect("a byte"))
        .collect()
}

#[test]
fn echo_survives_starved_buffer_groups() {
    const CLIENTS: usize = 8;
    const BYTES: usize = 60_000;
    let ring = small_ring();
    // Two buffers of 64 bytes for eight busy connections: the group runs dry all the time.
    let group = ring.add_buffer_group(2, 64).expect("a group");
    let (listener, address) = listener(&ring);
    ring.accept_multishot(listener, ACCEPT);
    let clients: Vec<_> =
        (0..CLIENTS).map(|salt| thread::spawn(move || echo_client(address, salt, BYTES))).collect();

    let mut connections = BTreeMap::<u64, Echo>::new();
    let (mut closed, mut starved) = (0, 0);
    run_until(&ring, |ring, completion| {
        match completion {
            Completion::Accepted { fd, is_armed, .. } => {
                assert!(is_armed);
                let id = 100 + connections.len() as u64;
                let socket = ring.adopt_socket(fd);
                ring.receive_multishot(socket, group, Token(id));
                connections
                    .insert(id, Echo { socket, pending: Vec::new(), is_sending: false, is_ended: false });
            }
            Completion::Received { token: Token(id), bytes, is_armed } => {
                let echo = connections.get_mut(&id).expect("known");
                echo.pending.extend_from_slice(&bytes);
                drop(bytes);
                if !is_armed {
                    ring.receive_multishot(echo.socket, group, Token(id));
                }
                echo.flush(ring, id);
            }
            Completion::ReceiveStarved { token: Token(id) } => {
                starved += 1;
                ring.receive_multishot(connections[&id].socket, group, Token(id));
            }
            Completion::Sent { token: Token(id), buffer, result } => {
                result.expect("sent");
                assert!(!buffer.is_empty());
                let id = id - 1000;
                let echo = connections.get_mut(&id).expect("known");
                echo.is_sending = false;
                echo.flush(ring, id);
            }
            Completion::EndOfStream { token: Token(id) } => {
                let echo = connections.get_mut(&id).expect("known");
                echo.is_ended = true;
                echo.flush(ring, id);
            }
            Completion::Closed { .. } => closed += 1,
            other => panic!("unexpected {other:?}"),
        }
        (closed == CLIENTS).then_some(())
    });
    for client in clients {
        client.join().expect("every client got its bytes back");
    }
    assert!(starved > 0, "the test has forced the group to run dry");
}

struct Echo {
    socket: Socket,
    pending: Vec<u8>,
    is_sending: bool,
    is_ended: bool,
}

impl Echo {
    fn flush(&mut self, ring: &Ring, id: u64) {
        if self.is_sending {
            return;
        }
        if !self.pending.is_empty() {
            self.is_sending = true;
            ring.send(self.socket, std::mem::take(&mut self.pending), Token(id + 1000));
        } else if self.is_ended {
            ring.close(self.socket, CLOSE);
        }
    }
}

fn echo_client(address: SocketAddr, salt: usize, len: usize) {
    let mut stream = TcpStream::connect(address).expect("connects");
    let sent = pattern(len, salt);
    let mut writer = stream.try_clone().expect("clones");
    let bytes = sent.clone();
    let writing = thread::spawn(move || {
        writer.write_all(&bytes).expect("writes");
        writer.shutdown(Shutdown::Write).expect("shuts down");
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("reads");
    writing.join().expect("wrote");
    assert!(received == sent, "the echo differs from what was sent");
}

#[test]
fn large_sends_arrive_whole_and_in_order() {
    let ring = small_ring();
    let (socket, mut client) = connection(&ring);
    let parts: Vec<Vec<u8>> = (0..3000).map(|n| pattern(n % 4000, n)).collect();
    let mut expected = pattern(6_000_000, 0);
    expected.extend(parts.iter().flatten());
    ring.send(socket, pattern(6_000_000, 0), SEND);
    let reading = thread::spawn(move || {
        // A late and slow reader: the socket's buffer fills and the send can go on only in part.
        thread::sleep(Duration::from_millis(50));
        let mut received = Vec::new();
        client.read_to_end(&mut received).expect("reads");
        received
    });
    let buffer = run_until(&ring, |_, completion| match completion {
        Completion::Sent { token: SEND, buffer, result } => Some(result.map(|()| buffer).expect("sent")),
        Completion::Woken => None,
        other => panic!("unexpected {other:?}"),
    });
    assert_eq!(buffer.len(), 6_000_000);
    // More pieces than one call takes.
    ring.send_vectored(socket, parts, SEND);
    run_until(&ring, |ring, completion| match completion {
        Completion::SentVectored { token: SEND, buffers, result } => {
            result.expect("sent");
            assert_eq!(buffers.len(), 3000);
            ring.close(socket, CLOSE);
            None
        }
        Completion::Closed { token: CLOSE } => Some(()),
        other => panic!("unexpected {other:?}"),
    });
    assert!(reading.join().expect("reads") == expected);
}

#[test]
fn empty_sends_complete() {
    let ring = small_ring();
    let (socket, _client) = connection(&ring);
    ring.send(socket, Vec::new(), SEND);
    run_until(&ring, |_, completion| match completion {
        Completion::Sent { result, .. } => Some(result.expect("nothing to send is no failure")),
        other => panic!("unexpected {other:?}"),
    });
    ring.send_vectored(socket, vec![Vec::new()], SEND);
    run_until(&ring, |_, completion| match completion {
        Completion::SentVectored { result, .. } => Some(result.expect("nothing to send is no failure")),
        other => panic!("unexpected {other:?}"),
    });
}

#[test]
fn single_receive_leaves_the_rest_in_the_socket_for_the_next_owner() {
    let ring = small_ring();
    let group = ring.add_buffer_group(4, 4096).expect("a group");
    let (socket, mut client) = connection(&ring);
    client.write_all(b"hello and more").expect("writes");
    ring.receive(socket, group, 5, RECEIVE);
    run_until(&ring, |_, completion| match completion {
        Completion::Received { bytes, is_armed, .. } => {
            assert!(!is_armed);
            assert_eq!(&*bytes, b"hello");
            Some(())
        }
        other => panic!("unexpected {other:?}"),
    });
    let fd = ring.detach_socket(socket).expect("nothing is in flight");
    let next_owner = small_ring();
    let group = next_owner.add_buffer_group(4, 4096).expect("a group");
    let socket = next_owner.adopt_socket(fd);
    next_owner.receive_multishot(socket, group, RECEIVE);
    run_until(&next_owner, |_, completion| match completion {
        Completion::Received { bytes, .. } => Some(assert_eq!(&*bytes, b" and more")),
        other => panic!("unexpected {other:?}"),
    });
    assert!(next_owner.detach_socket(socket).is_none(), "a receive is in flight");
}

#[test]
fn refused_connect_says_so_and_a_good_one_connects() {
    let ring = small_ring();
    let (listener, address) = listener(&ring);
    ring.accept(listener, ACCEPT);
    let socket = ring.adopt_socket(outgoing(address, None, &SocketOptions::default()).expect("a socket"));
    ring.connect(socket, address, CONNECT);
    run_until(&ring, |_, completion| match completion {
        Completion::Connected { token: CONNECT, result } => Some(result.expect("connected")),
        Completion::Accepted { .. } => None,
        other => panic!("unexpected {other:?}"),
    });
    // A port that was bound and is free again has nobody listening.
    let free = {
        let fd = listen("127.0.0.1:0".parse().expect("an address"), 1, &SocketOptions::default())
            .expect("a listener");
        local_address(&fd).expect("its address")
    };
    let socket = ring.adopt_socket(outgoing(free, None, &SocketOptions::default()).expect("a socket"));
    ring.connect(socket, free, CONNECT);
    let error = run_until(&ring, |_, completion| match completion {
        Completion::Connected { token: CONNECT, result } => Some(result.expect_err("refused")),
        Completion::Accepted { .. } => None,
        other => panic!("unexpected {other:?}"),
    });
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn close_ends_what_is_in_flight_and_reports_itself_last() {
    let ring = small_ring();
    let group = ring.add_buffer_group(4, 4096).expect("a group");
    let (socket, mut client) = connection(&ring);
    ring.receive_multishot(socket, group, RECEIVE);
    ring.send(socket, vec![0; 50_000_000], SEND);
    ring.submit_and_wait(Some(Duration::from_millis(20))).expect("a turn");
    ring.close(socket, CLOSE);
    let (mut received, mut sent) = (false, false);
    run_until(&ring, |_, completion| match completion {
        Completion::ReceiveFailed { token: RECEIVE, error } => {
            assert_eq!(error.raw_os_error(), Some(125), "ECANCELED");
            received = true;
            None
        }
        Completion::Sent { token: SEND, buffer, result } => {
            assert!(result.is_err());
            assert_eq!(buffer.len(), 50_000_000);
            sent = true;
            None
        }
        Completion::Closed { token: CLOSE } => Some(()),
        other => panic!("unexpected {other:?}"),
    });
    assert!(received && sent, "both operations ended before the close was reported");
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).expect("the other end sees the end");
    assert!(rest.len() < 50_000_000);
}

#[test]
fn cancelled_send_returns_its_buffer_and_says_that_not_all_went_out() {
    let ring = small_ring();
    let (socket, _client) = connection(&ring);
    for is_vectored in [false, true] {
        let id = if is_vectored {
            ring.send_vectored(socket, vec![vec![0; 50_000_000]], SEND)
        } else {
            ring.send(socket, vec![0; 50_000_000], SEND)
        };
        ring.submit_and_wait(Some(Duration::from_millis(20))).expect("a turn");
        ring.cancel(id);
        run_until(&ring, |_, completion| match completion {
            Completion::Sent { result, .. } | Completion::SentVectored { result, .. } => {
                Some(assert_eq!(result.expect_err("cancelled").raw_os_error(), Some(125)))
            }
            other => panic!("unexpected {other:?}"),
        });
    }
}

#[test]
#[should_panic(expected = "after its descriptor was closed")]
fn using_a_closed_socket_is_a_defect() {
    let ring = small_ring();
    let (socket, _client) = connection(&ring);
    ring.close(socket, CLOSE);
    ring.send(socket, vec![1], SEND);
}

#[test]
#[should_panic(expected = "a receive is in flight on the socket already")]
fn a_second_receive_on_a_socket_is_a_defect() {
    let ring = small_ring();
    let group = ring.add_buffer_group(4, 4096).expect("a group");
    let (socket, _client) = connection(&ring);
    ring.receive_multishot(socket, group, RECEIVE);
    ring.receive(socket, group, 5, RECEIVE);
}

#[test]
fn arrivals_are_known_to_be_handed_out_exactly() {
    let ring = small_ring();
    let group = ring.add_buffer_group(2, 16).expect("a group");
    let (socket, mut client) = connection(&ring);
    // A file with something in it, and a listener with somebody waiting, have no arrivals.
    let program = std::fs::File::open(std::env::current_exe().expect("this program")).expect("opens");
    ring.adopt_file(program.into());
    let (_listener, address) = listener(&ring);
    let _waiting = TcpStream::connect(address).expect("connects");
    assert!(ring.mark_arrivals());
    assert!(ring.marked_arrivals_are_handed_out(), "nothing has arrived");
    client.write_all(&[1; 1000]).expect("writes");
    assert!(ring.mark_arrivals());
    assert!(!ring.marked_arrivals_are_handed_out(), "a thousand bytes wait, though no receive is armed");
    // What comes after the mark does not count.
    client.write_all(&[2; 1000]).expect("writes");
    ring.receive_multishot(socket, group, RECEIVE);
    let (mut before, mut after) = (0, 0);
    run_until(&ring, |ring, completion| {
        match completion {
            Completion::Received { bytes, is_armed, .. } => {
                before += bytes.iter().filter(|byte| **byte == 1).count();
                after += bytes.iter().filter(|byte| **byte == 2).count();
                assert_eq!(ring.marked_arrivals_are_handed_out(), before == 1000);
                assert_eq!(ring.is_behind_mark(socket), before < 1000);
                if !is_armed {
                    ring.receive_multishot(socket, group, RECEIVE);
                }
            }
            Completion::ReceiveStarved { .. } => {
                ring.receive_multishot(socket, group, RECEIVE);
            }
            other => panic!("unexpected {other:?}"),
        }
        (after == 1000).then_some(())
    });
    // A socket that ends or is given up holds nothing back.
    client.write_all(&[3; 100]).expect("writes");
    assert!(run_until_marked(&ring));
    ring.close(socket, CLOSE);
    assert!(ring.marked_arrivals_are_handed_out());
}

/// Takes what is there, then marks.
fn run_until_marked(ring: &Ring) -> bool {
    ring.completions().for_each(drop);
    ring.mark_arrivals()
}

#[test]
fn a_turn_ends_with_the_completions_that_were_there_when_it_began() {
    let ring = small_ring();
    let (first, _kept) = connection(&ring);
    let (second, _kept_too) = connection(&ring);
    ring.send(first, vec![1], SEND);
    ring.submit_and_wait(Some(PATIENCE)).expect("a turn");
    let mut taken = 0;
    for completion in ring.completions() {
        assert!(matches!(completion, Completion::Sent { result: Ok(()), .. }), "{completion:?}");
        taken += 1;
        assert_eq!(taken, 1, "what completes meanwhile is the next turn's");
        // More than the queue holds: the first ones go out, and complete, in the middle of this turn.
        for _ in 0..20 {
            ring.send(second, vec![2], SEND);
        }
    }
    assert_eq!(taken, 1);
    assert!(!ring.mark_arrivals(), "some have completed");
    run_until(&ring, |_, completion| {
        assert!(matches!(completion, Completion::Sent { result: Ok(()), .. }), "{completion:?}");
        taken += 1;
        (taken == 21).then_some(())
    });
}

#[test]
fn more_operations_than_queue_entries_are_all_carried_out() {
    let ring = small_ring();
    let timers = 300;
    for number in 0..timers {
        ring.timer(Duration::from_millis(1 + number % 5), Token(number));
    }
    let mut fired = vec![false; 300];
    let mut count = 0;
    run_until(&ring, |_, completion| match completion {
        Completion::TimerFired { token: Token(number) } => {
            let number = usize::try_from(number).expect("small");
            assert!(!std::mem::replace(&mut fired[number], true), "each fires once");
            count += 1;
            (count == 300).then_some(())
        }
        other => panic!("unexpected {other:?}"),
    });
}

#[test]
fn cancelled_operation_ends_and_a_late_cancel_is_harmless() {
    let ring = small_ring();
    let timer = ring.timer(Duration::from_secs(3600), Token(9));
    ring.cancel(timer);
    run_until(&ring, |_, completion| match completion {
        Completion::TimerCancelled { token: Token(9) } => Some(()),
        other => panic!("unexpected {other:?}"),
    });
    ring.cancel(timer);
    let short = ring.timer(Duration::from_millis(1), Token(10));
    run_until(&ring, |_, completion| match completion {
        Completion::TimerFired { token: Token(10) } => Some(()),
        other => panic!("unexpected {other:?}"),
    });
    assert_ne!(timer, short);
}

#[test]
fn dropping_the_ring_with_everything_in_flight_closes_the_connections() {
    let ring = small_ring();
    let group = ring.add_buffer_group(4, 4096).expect("a group");
    let (socket, mut client) = connection(&ring);
    let (other, address) = listener(&ring);
    ring.accept_multishot(other, ACCEPT);
    ring.receive_multishot(socket, group, RECEIVE);
    ring.send(socket, vec![7; 50_000_000], SEND);
    ring.timer(Duration::from_secs(3600), Token(9));
    ring.submit_and_wait(Some(Duration::from_millis(10))).expect("a turn");
    // Queued and not even submitted:
    ring.timer(Duration::from_secs(3600), Token(10));
    client.write_all(b"in the middle").expect("writes");
    let started = std::time::Instant::now();
    drop(ring);
    assert!(started.elapsed() < Duration::from_secs(2), "everything could be cancelled");
    let mut rest = Vec::new();
    // The end or a reset: unread bytes make TCP say the latter.
    let _ = client.read_to_end(&mut rest);
    assert!(rest.len() < 50_000_000);
    assert!(TcpStream::connect(address).is_err(), "the listener is closed");
}

#[test]
fn adopted_descriptor_is_the_rings_alone() {
    let ring = small_ring();
    let (socket, client) = connection(&ring);
    let seen = ring.with_socket(socket, |fd| peer_address(fd).expect("a peer")).expect("open");
    assert_eq!(seen, client.local_addr().expect("an address"));
    let fd: OwnedFd = ring.detach_socket(socket).expect("idle");
    assert_eq!(peer_address(&fd).expect("a peer"), seen);
}

#[test]
fn port_of_a_ring_just_dropped_can_be_listened_on_and_one_in_use_is_refused() {
    let options = SocketOptions::default();
    let ring = small_ring();
    let (socket, address) = listener(&ring);
    ring.accept_multishot(socket, ACCEPT);
    ring.submit_and_wait(Some(Duration::ZERO)).expect("a turn");
    drop(ring);
    let next = listen(address, 16, &options).expect("the port is free");
    let error = listen(address, 16, &options).expect_err("the port is in use");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    drop(next);
}

#[test]
fn sending_to_a_peer_that_is_gone_fails_and_the_process_lives() {
    let ring = small_ring();
    let (socket, client) = connection(&ring);
    drop(client);
    ring.send(socket, vec![0; 100], SEND);
    let error = run_until(&ring, |ring, completion| match completion {
        Completion::Sent { buffer, result: Ok(()), .. } => {
            // The first ones may go out before the reset is back.
            ring.send(socket, buffer, SEND);
            None
        }
        Completion::Sent { buffer, result: Err(error), .. } => {
            assert_eq!(buffer.len(), 100);
            Some(error)
        }
        other => panic!("unexpected {other:?}"),
    });
    assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
}

#[test]
fn closed_listener_accepts_no_more() {
    let ring = small_ring();
    let (socket, address) = listener(&ring);
    ring.accept_multishot(socket, ACCEPT);
    ring.submit_and_wait(Some(Duration::ZERO)).expect("a turn");
    ring.close(socket, CLOSE);
    let mut is_ended = false;
    run_until(&ring, |_, completion| match completion {
        Completion::AcceptFailed { token: ACCEPT, error } => {
            assert_eq!(error.raw_os_error(), Some(125), "ECANCELED");
            is_ended = true;
            None
        }
        Completion::Closed { token: CLOSE } => Some(assert!(is_ended)),
        other => panic!("unexpected {other:?}"),
    });
    assert_eq!(TcpStream::connect(address).expect_err("closed").kind(), ErrorKind::ConnectionRefused);
}
