//! Between threads: doorbells, wakers, time.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_ring::{Completion, Token, Turn};

use crate::{run_until, small_ring};

#[test]
fn two_rings_ring_each_others_doorbells() {
    const ROUNDS: u32 = 1000;
    let ring = small_ring();
    let bell = ring.doorbell();
    let (sender, receiver) = mpsc::channel();
    let other = thread::spawn(move || {
        let ring = small_ring();
        sender.send(ring.doorbell()).expect("the first thread waits for it");
        let first = ring.connect_doorbell(bell);
        run_until(&ring, |ring, completion| match completion {
            Completion::DoorbellRang { word } => {
                ring.ring_doorbell(first, word + 1);
                (word >= 2 * ROUNDS).then_some(())
            }
            other => panic!("unexpected {other:?}"),
        });
        // The last answer is queued; this turn sends it.
        ring.submit_and_wait(Some(Duration::ZERO)).expect("a turn");
    });
    let second = ring.connect_doorbell(receiver.recv().expect("a doorbell"));
    ring.ring_doorbell(second, 0);
    run_until(&ring, |ring, completion| match completion {
        Completion::DoorbellRang { word } => {
            if word <= 2 * ROUNDS {
                ring.ring_doorbell(second, word + 1);
            }
            (word > 2 * ROUNDS).then_some(())
        }
        other => panic!("unexpected {other:?}"),
    });
    other.join().expect("the other ring went on");
}

#[test]
fn ringing_a_ring_that_is_gone_disturbs_nothing() {
    let gone = thread::spawn(|| small_ring().doorbell()).join().expect("a doorbell");
    let ring = small_ring();
    let doorbell = ring.connect_doorbell(gone);
    for word in 0..100 {
        ring.ring_doorbell(doorbell, word);
    }
    ring.timer(Duration::from_millis(20), Token(1));
    run_until(&ring, |_, completion| match completion {
        Completion::DoorbellFailed { doorbell: failed, .. } => {
            assert_eq!(failed, doorbell);
            None
        }
        Completion::TimerFired { token: Token(1) } => Some(()),
        other => panic!("unexpected {other:?}"),
    });
}

#[test]
fn waker_ends_the_wait_from_a_thread_without_a_ring_time_after_time() {
    let ring = small_ring();
    let waker = ring.waker();
    let (request, requests) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        while requests.recv().is_ok() {
            thread::sleep(Duration::from_millis(2));
            waker.wake().expect("wakes");
        }
    });
    for _ in 0..20 {
        request.send(()).expect("the thread listens");
        assert_eq!(ring.submit_and_wait(None).expect("a turn"), Turn::Ready);
        assert!(matches!(ring.completions().next(), Some(Completion::Woken)));
        assert!(ring.completions().next().is_none());
    }
    drop(request);
    thread.join().expect("ends");
}

#[test]
fn wait_ends_at_its_timeout_and_not_before() {
    let ring = small_ring();
    for timeout in [Duration::ZERO, Duration::from_millis(30)] {
        let started = Instant::now();
        assert_eq!(ring.submit_and_wait(Some(timeout)).expect("a turn"), Turn::Idle);
        assert!(started.elapsed() >= timeout);
    }
}
