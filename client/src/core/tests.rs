//! The core against a cell in memory, over a network and a clock that the test moves.

mod lease;
mod link;
mod withdraw;

use std::collections::VecDeque;

use lockstep_wire::Nonce;
use lockstep_wire::request::Mode;

use super::*;
use crate::fake::{CELL, FakeCell};

const NAME: &str = "/ls/demo/job";

/// A core, a cell, and what is on its way between them.
struct Rig {
    core: ClientCore,
    cell: FakeCell,
    now: Time,
    /// Connections that the core asked for.
    wanted: VecDeque<(ConnectionId, String)>,
    /// Every endpoint it asked for.
    tried: Vec<String>,
    connection: Option<ConnectionId>,
    to_cell: VecDeque<Vec<u8>>,
    events: Vec<Event>,
    /// Connects are refused.
    is_refusing: bool,
    /// When the cell last took in something that it acknowledges a session by.
    acknowledged_at: Time,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut ClientConfig)) -> Rig {
        let endpoints = ["a:1", "b:1", "c:1"].map(str::to_owned).to_vec();
        let mut config = ClientConfig::new(CELL, endpoints, "test", 0);
        change(&mut config);
        let now = Time(1_000_000_000);
        Rig {
            core: ClientCore::new(config, now),
            cell: FakeCell::default(),
            now,
            wanted: VecDeque::new(),
            tried: Vec::new(),
            connection: None,
            to_cell: VecDeque::new(),
            events: Vec::new(),
            is_refusing: false,
            acknowledged_at: Time(0),
        }
    }

    fn pull(&mut self) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Connect { connection, endpoint } => {
                    self.tried.push(endpoint.clone());
                    self.wanted.push_back((connection, endpoint));
                }
                Action::Send { connection, bytes } => {
                    assert_eq!(self.connection, Some(connection), "bytes for a connection that is not there");
                    self.to_cell.push_back(bytes);
                }
                Action::Disconnect { connection } => {
                    self.wanted.retain(|(wanted, _)| *wanted != connection);
                    if self.connection == Some(connection) {
                        self.drop_link();
                    }
                }
            }
        }
        while let Some(event) = self.core.poll_event() {
            self.events.push(event);
        }
    }

    fn drop_link(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.cell.disconnect(connection.0);
        }
        self.to_cell.clear();
        self.cell.sent.clear();
    }

    /// Cuts the connection, with all that is on its way.
    fn cut(&mut self) {
        if let Some(connection) = self.connection {
            self.drop_link();
            self.core.on_disconnected(connection, "connection reset", self.now);
            self.pull();
        }
    }

    /// Lets one thing happen on the network; false when nothing is on its way.
    fn step(&mut self) -> bool {
        self.pull();
        if let Some((connection, _)) = self.wanted.pop_front() {
            if self.is_refusing {
                self.core.on_connect_failed(connection, "connection refused", self.now);
            } else {
                self.connection = Some(connection);
                self.core.on_connected(connection, self.now);
            }
        } else if let (Some(connection), Some(bytes)) = (self.connection, self.to_cell.pop_front()) {
            let heard = self.cell.heard.len();
            self.cell.receive(connection.0, &bytes);
            let is_beat =
                |heard: &String| ["Open", "Attach", "KeepAlive"].iter().any(|kind| heard.starts_with(kind));
            if self.cell.heard[heard..].iter().any(is_beat) {
                self.acknowledged_at = self.now;
            }
        } else if !self.cell.sent.is_empty() {
            let (port, bytes) = self.cell.sent.remove(0);
            self.core.on_bytes(ConnectionId(port), &bytes, self.now);
        } else {
            return false;
        }
        self.pull();
        true
    }

    /// Lets everything happen that takes no time.
    fn settle(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 10_000, "it never settles");
        }
    }

    /// Lets time pass, tick by tick, with everything that happens in it.
    fn pass_ms(&mut self, ms: u64) {
        let until = self.now.plus_ms(ms);
        let mut ticks = 0;
        self.settle();
        while let Some(deadline) = self.core.deadline().filter(|at| *at <= until) {
            self.now = self.now.max(deadline);
            self.core.on_tick(self.now);
            self.settle();
            ticks += 1;
            assert!(ticks < 100_000, "its deadlines do not move on");
        }
        self.now = until;
        self.core.on_tick(self.now);
        self.settle();
    }

    fn open(&mut self, ttl_ms: u32) -> SessionKey {
        let nonce = Nonce([u8::try_from(self.events.len() % 250).unwrap(); 16]);
        let (key, call) = self.core.open_session(ttl_ms, nonce, self.now);
        self.settle();
        assert_eq!(self.outcome(call), Some(Outcome::Opened { ttl_ms }));
        key
    }

    fn acquire(&mut self, key: SessionKey, name: &str, wait_ms: u32) -> CallId {
        let owner = lockstep_wire::Owner(self.core.next_key);
        let options = AcquireOptions {
            name: name.to_owned(),
            owner,
            mode: Mode::Exclusive,
            is_reentrant: false,
            wait_ms,
            data: Vec::new(),
        };
        self.core.acquire(key, options, self.now)
    }

    fn hold(&mut self, key: SessionKey, name: &str) -> CallId {
        let call = self.acquire(key, name, 0);
        self.settle();
        assert!(matches!(self.outcome(call), Some(Outcome::Granted(_))), "{:?}", self.outcome(call));
        call
    }

    fn outcome(&self, of: CallId) -> Option<Outcome> {
        let mut all = self.events.iter().filter_map(|event| match event {
            Event::Finished { call, outcome } if *call == of => Some(outcome.clone()),
            _ => None,
        });
        let first = all.next();
        assert_eq!(all.next(), None, "a call has one outcome");
        first
    }

    fn conditions(&self, of: SessionKey) -> Vec<Condition> {
        let of_it = |event: &Event| match event {
            Event::SessionChanged { session, condition } if *session == of => Some(*condition),
            _ => None,
        };
        self.events.iter().filter_map(of_it).collect()
    }

    fn losses(&self) -> Vec<(CallId, Loss)> {
        let loss = |event: &Event| match event {
            Event::HoldLost { acquire, reason, .. } => Some((*acquire, *reason)),
            _ => None,
        };
        self.events.iter().filter_map(loss).collect()
    }

    fn is_held(&self, call: CallId) -> bool {
        self.core.is_held(call, self.now)
    }
}

#[test]
fn an_acquire_asked_for_before_the_session_is_open_is_granted_and_released() {
    let mut rig = Rig::new();
    let (key, _) = rig.core.open_session(10_000, Nonce([1; 16]), rig.now);
    let call = rig.acquire(key, NAME, 0);
    rig.settle();
    assert!(matches!(rig.outcome(call), Some(Outcome::Granted(_))));
    assert!(rig.is_held(call));
    let release = rig.core.release(call, rig.now);
    assert!(!rig.is_held(call), "a hold is invalid from the call of release on");
    rig.settle();
    assert_eq!(rig.outcome(release), Some(Outcome::Released));
    assert_eq!(rig.cell.holder(NAME), None);
    expect_test::expect![[r#"
        [
            "Hello",
            "Open 10000",
            "Acquire 1",
            "Release 2 of 1",
        ]
    "#]]
    .assert_debug_eq(&rig.cell.heard);
}

#[test]
fn a_waiter_hears_its_place_and_then_its_grant() {
    let mut rig = Rig::new();
    let intruder = rig.cell.intrude(NAME);
    let key = rig.open(10_000);
    let call = rig.acquire(key, NAME, 5_000);
    rig.settle();
    assert!(rig.events.contains(&Event::Queued { call, position: 1 }));
    rig.pass_ms(3_000);
    assert_eq!(rig.outcome(call), None);
    rig.cell.leave(intruder);
    rig.settle();
    assert!(matches!(rig.outcome(call), Some(Outcome::Granted(_))));
}

#[test]
fn more_acquires_than_the_window_holds_wait_in_the_client_and_are_all_granted() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let calls: Vec<CallId> =
        (0..300).map(|number| rig.acquire(key, &format!("{NAME}{number}"), 1_000)).collect();
    let under_way = rig.core.sessions[&key].unfinished.len();
    assert!(under_way < lockstep_wire::limit::REQUEST_WINDOW_MAX, "{under_way} are under way");
    rig.settle();
    for call in &calls {
        assert!(rig.is_held(*call));
    }
    for call in calls {
        rig.core.release(call, rig.now);
    }
    rig.settle();
    assert!(rig.cell.locks.is_empty());
    assert!(rig.cell.runs.values().all(|runs| *runs == 1));
}

#[test]
fn waiters_that_fill_the_window_leave_room_for_releases_and_cancels() {
    let mut rig = Rig::new();
    rig.cell.intrude(NAME);
    let key = rig.open(10_000);
    let held = rig.hold(key, "/ls/demo/other");
    let waiting: Vec<CallId> = (0..200).map(|_| rig.acquire(key, NAME, 60_000)).collect();
    rig.settle();
    let release = rig.core.release(held, rig.now);
    rig.settle();
    assert_eq!(rig.outcome(release), Some(Outcome::Released));
    for call in waiting {
        rig.core.cancel(call, rig.now);
    }
    rig.settle();
    assert_eq!(rig.cell.locks[NAME].len(), 1, "only the intruder is left");
}

#[test]
fn closing_a_session_ends_its_holds_and_fails_its_waits() {
    let mut rig = Rig::new();
    rig.cell.intrude(NAME);
    let key = rig.open(10_000);
    let held = rig.hold(key, "/ls/demo/other");
    let waiting = rig.acquire(key, NAME, 60_000);
    rig.settle();
    let closed = rig.core.close_session(key, rig.now);
    assert!(!rig.is_held(held));
    rig.settle();
    let over = Loss::Ended(lockstep_wire::reply::EndReason::Closed);
    assert_eq!(rig.outcome(closed), Some(Outcome::Closed { released_total: 0, released: Vec::new() }));
    assert_eq!(rig.outcome(waiting), Some(Outcome::Failed(Failure::SessionEnded(over))));
    assert_eq!(rig.losses(), [(held, over)]);
    assert!(rig.cell.session_ids().is_empty());
    assert!(rig.core.is_idle());
}

#[test]
fn an_acquire_that_cannot_be_is_refused_without_being_sent() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let call = rig.acquire(key, "job", 0);
    rig.settle();
    expect_test::expect![[r#"
        Some(
            Failed(
                Invalid {
                    detail: "a lock's name begins with /ls/, as in /ls/demo/job",
                },
            ),
        )
    "#]]
    .assert_debug_eq(&rig.outcome(call));
    assert_eq!(rig.cell.heard, ["Hello", "Open 10000"]);
}
