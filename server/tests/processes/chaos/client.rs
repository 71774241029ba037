//! Clients as users have them, which note down everything that they do and are told.
//!
//! Invariant: an asking is noted before it is sent, an answer after it has come, and a belief together with the clock at
//! that moment, all in one list; so the order of the list is an order of time. Deliberately absent: judgement.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockstep_client::core::{Condition, Loss};
use lockstep_client::{Client, Error, Guard, Session, clock};
use lockstep_sim::oracle::history::Event;
use lockstep_sim::random::{Concern, Stream};
use lockstep_wire::request::Mode;
use lockstep_wire::{LogIndex, Owner, SessionId};

/// Names that everybody contends for.
const NAMES: u64 = 8;
/// TTLs of those who come and go.
const TTL_MS_MAX: u64 = 3_000;
/// The TTL of the session that is to outlive the storm, in ms.
pub(super) const KEPT_TTL_MS: u64 = 60_000;
/// Holds that each keeper has in the end.
const KEPT_MAX: usize = 40;

/// What all clients have noted.
#[derive(Debug, Default)]
pub(super) struct Notes {
    events: Mutex<Vec<Event>>,
    /// Names acquires and reads.
    numbers: AtomicU64,
    pub(super) stop: AtomicBool,
}

impl Notes {
    fn list(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, event: Event) {
        self.list().push(event);
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A holder writes to what the lock protects. What it believes is noted at the moment of the write.
    fn write(&self, owner: Owner, guard: &Guard) {
        let mut events = self.list();
        let safe_until = guard.safe_until().0;
        events.push(Event::Wrote { owner, safe_until, now: clock::now().0 });
    }

    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether each of these clients has been granted something.
    pub(super) fn all_have_been_granted(&self, clients: Range<usize>) -> bool {
        let events = self.list();
        let granted: BTreeSet<Owner> = events
            .iter()
            .filter_map(|event| if let Event::Granted { owner, .. } = event { Some(*owner) } else { None })
            .collect();
        let mut missing: BTreeSet<usize> = clients.collect();
        for event in events.iter() {
            if let Event::Asked { client, owner, .. } = event
                && granted.contains(owner)
            {
                missing.remove(client);
            }
        }
        missing.is_empty()
    }

    /// Everything so far, in order.
    pub(super) fn events(&self) -> Vec<Event> {
        self.list().clone()
    }
}

/// The name of a lock that everybody contends for.
fn name(number: u64) -> String {
    format!("/ls/chaos/{number}")
}

/// A client that acts, and its choices.
pub(super) struct Actor {
    pub(super) number: usize,
    pub(super) client: Client,
    pub(super) notes: Arc<Notes>,
    pub(super) stream: Stream,
}

impl Actor {
    /// The `number`th actor of a run.
    pub(super) fn new(number: usize, client: Client, notes: Arc<Notes>, seed: u64) -> Actor {
        Actor { number, client, notes, stream: Stream::new(seed, Concern::Workload, number as u64) }
    }

    /// Opens a session; none when the cell could not be reached.
    async fn open(&mut self, ttl_ms: u64) -> Option<Session> {
        let session = self.client.open_session(&name(0), Duration::from_millis(ttl_ms)).await.ok()?;
        self.notes.note(Event::Opened { session: session.id() });
        Some(session)
    }

    /// Opens sessions and uses them until the storm is over.
    pub(super) async fn come_and_go(mut self) {
        while !self.notes.is_over() {
            let ttl_ms = self.stream.between(1_000, TTL_MS_MAX);
            let Some(session) = self.open(ttl_ms).await else { continue };
            let id = session.id();
            while !self.notes.is_over() && !matches!(session.condition(), Condition::Ended(_)) {
                if self.stream.percent(2) {
                    break;
                }
                self.act(&session).await;
                self.rest(20).await;
            }
            if let Condition::Ended(loss) = session.condition() {
                self.note_end(id, loss);
            } else if session.close().await.is_ok() {
                self.notes.note(Event::Ended { session: id });
            }
        }
    }

    fn note_end(&self, session: SessionId, loss: Loss) {
        match loss {
            Loss::Ended(_) => self.notes.note(Event::Ended { session }),
            Loss::Unconfirmed | Loss::Unknown => {}
        }
    }

    async fn rest(&mut self, mean_ms: u64) {
        tokio::time::sleep(Duration::from_millis(self.stream.around(mean_ms))).await;
    }

    /// Looks at a lock, or asks for it.
    async fn act(&mut self, session: &Session) {
        let name = name(self.stream.below(NAMES));
        if self.stream.percent(25) {
            return self.look(&name).await;
        }
        let mode = if self.stream.percent(40) { Mode::Shared } else { Mode::Exclusive };
        let wait_ms = self.stream.one_of(&[0, 50, 500, 3_000]);
        let owner = Owner(self.notes.number());
        let acquire = session.acquire(&name).owner(owner.0).wait(Duration::from_millis(wait_ms));
        let acquire = if mode == Mode::Shared { acquire.shared() } else { acquire };
        self.note_asked(session, owner, &name, mode);
        // Some lose patience, at whatever point their acquire is then.
        let patience_ms = if self.stream.percent(15) { self.stream.around(30) } else { 60_000 };
        match tokio::time::timeout(Duration::from_millis(patience_ms), acquire.into_future()).await {
            Ok(Ok(guard)) => self.hold(owner, guard).await,
            Ok(Err(error)) => self.note_denied(owner, &error),
            Err(_) => {}
        }
    }

    fn note_asked(&self, session: &Session, owner: Owner, name: &str, mode: Mode) {
        let (client, session, name) = (self.number, session.id(), name.to_owned());
        self.notes.note(Event::Asked { client, session, owner, name, mode });
    }

    fn note_denied(&self, owner: Owner, error: &Error) {
        if matches!(error, Error::Held { .. } | Error::TimedOut { .. } | Error::NoCluster { .. }) {
            self.notes.note(Event::Denied { owner });
        }
    }

    /// Notes a grant; says whether its token was still to be had.
    fn note_granted(&self, owner: Owner, guard: &Guard) -> bool {
        let (Some(token), Some(fence)) = (guard.token(), guard.fence()) else { return false };
        self.notes.note(Event::Granted { owner, token, fence });
        true
    }

    /// Writes for a while, whatever happens meanwhile, and gives the lock back.
    async fn hold(&mut self, owner: Owner, guard: Guard) {
        if !self.note_granted(owner, &guard) {
            return;
        }
        for _ in 0..self.stream.between(1, 4) {
            self.notes.write(owner, &guard);
            // Some hold for longer than their session may live without a word of its cell.
            let mean_ms = if self.stream.percent(5) { 1_500 } else { 8 };
            self.rest(mean_ms).await;
        }
        self.notes.write(owner, &guard);
        if self.stream.percent(80) && guard.release().await.is_ok() {
            self.notes.note(Event::Released { owner });
        }
    }

    async fn look(&mut self, name: &str) {
        let read = self.notes.number();
        self.notes.note(Event::Looking { read, name: name.to_owned() });
        if let Ok(info) = self.client.get(name).await {
            let holders =
                info.holders.iter().map(|held| (held.session, held.acquire_id, held.token)).collect();
            let revision = LogIndex(info.revision.0 & ((1 << 48) - 1));
            self.notes.note(Event::Looked { read, revision, holders });
        }
    }

    /// Opens one session that outlives the storm and takes one lock after the other, and keeps them all.
    pub(super) async fn keep(mut self) -> Vec<(Owner, Guard)> {
        let mut kept = Vec::new();
        let session = loop {
            match self.open(KEPT_TTL_MS).await {
                Some(session) => break session,
                None => assert!(!self.notes.is_over(), "keeper {} never had a session", self.number),
            }
        };
        while !self.notes.is_over() {
            if kept.len() < KEPT_MAX {
                let owner = Owner(self.notes.number());
                let name = format!("/ls/chaos/kept-{}-{}", self.number, owner.0);
                self.note_asked(&session, owner, &name, Mode::Exclusive);
                match session.acquire(&name).owner(owner.0).await {
                    Ok(guard) if self.note_granted(owner, &guard) => kept.push((owner, guard)),
                    Ok(_) => {}
                    Err(error) => self.note_denied(owner, &error),
                }
            }
            for (owner, guard) in &kept {
                self.notes.write(*owner, guard);
            }
            self.rest(300).await;
        }
        kept
    }

    /// Holds what was kept against what the cell says now, and gives it back.
    pub(super) async fn give_back(&self, kept: Vec<(Owner, Guard)>) {
        for (owner, guard) in kept {
            assert!(guard.is_held(), "{} was kept and its client has lost it", guard.name());
            self.notes.write(owner, &guard);
            let token = guard.token().expect("it is held");
            let checked = self.client.check(guard.name(), token).await.expect("the cell answers");
            assert!(checked.is_current, "{} with token {token} is lost: {checked:?}", guard.name());
            guard.release().await.expect("what was kept can be given back");
            self.notes.note(Event::Released { owner });
        }
    }

    /// Asks for every lock once, in line with whoever is left, and gives it back.
    pub(super) async fn visit_all(mut self) {
        let session = self.open(10_000).await.expect("the cell opens a session");
        for number in 0..NAMES {
            let (owner, name) = (Owner(self.notes.number()), name(number));
            self.note_asked(&session, owner, &name, Mode::Exclusive);
            let guard = session.acquire(&name).owner(owner.0).wait(Duration::from_secs(15)).await;
            let guard = guard.unwrap_or_else(|error| panic!("after the storm: {error}"));
            assert!(self.note_granted(owner, &guard), "{name} was granted and is lost");
            guard.release().await.expect("it can be given back");
            self.notes.note(Event::Released { owner });
        }
        let id = session.id();
        session.close().await.expect("a session can be closed");
        self.notes.note(Event::Ended { session: id });
    }
}
