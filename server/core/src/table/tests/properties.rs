//! Random entries: whatever comes, in whatever order, the contract holds.
//!
//! Few sessions, names and request ids, so that they meet; small limits, so that they bind.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_wire::entry::{Command, Silence};
use lockstep_wire::reply::EndReason;
use lockstep_wire::request::{Acquire, Mode, Mutation};
use lockstep_wire::{Epoch, FencingToken, LogIndex, Nonce, Owner, RequestId, Rows, SessionId};
use proptest::prelude::*;

use super::invariants::assert_coherent;
use crate::table::{Answer, Limits, Outcome, Outcomes, Table};

const NAMES: [&str; 3] = ["/ls/t/a", "/ls/t/a1", "/ls/t/a/1"];
const EPOCH: Epoch = Epoch(3);

/// One random entry; numbers are reduced to what exists.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Open {
        nonce: u8,
    },
    Acquire {
        who: u8,
        id: Id,
        name: u8,
        owner: u8,
        is_shared: bool,
        is_reentrant: bool,
        wait_ms: u32,
        seen: Vec<u8>,
    },
    Release {
        who: u8,
        id: Id,
        of: u8,
        is_stale: bool,
    },
    Cancel {
        who: u8,
        id: Id,
        back: u8,
    },
    CancelWait {
        who: u8,
        back: u8,
    },
    End {
        who: Vec<u8>,
        is_closed: bool,
    },
    Silent {
        who: u8,
        ms: u32,
    },
    Returned {
        who: u8,
    },
    Reap,
    Blank,
    EndQuiet,
}

/// Which request id: one of a step ahead, or one from the past.
#[derive(Clone, Copy, Debug)]
pub(super) enum Id {
    Ahead(u8),
    Back(u8),
}

fn id() -> impl Strategy<Value = Id> {
    prop_oneof![8 => (1u8..3).prop_map(Id::Ahead), 1 => (0u8..6).prop_map(Id::Back), 1 => (60u8..70).prop_map(Id::Ahead)]
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let acquire = (
        any::<u8>(),
        id(),
        prop_oneof![3 => Just(0u8), 1 => 1u8..3],
        0u8..8,
        (prop::bool::weighted(0.7), any::<bool>()),
        prop_oneof![1 => Just(0u32), 4 => 1u32..9],
        prop::collection::vec(0u8..8, 0..6),
    );
    prop_oneof![
        2 => (0u8..8).prop_map(|nonce| Step::Open { nonce }),
        14 => acquire.prop_map(|(who, id, name, owner, flags, wait_ms, seen)| Step::Acquire {
            who, id, name, owner, is_shared: flags.0, is_reentrant: flags.1, wait_ms, seen,
        }),
        5 => (any::<u8>(), id(), any::<u8>(), prop::bool::weighted(0.1))
            .prop_map(|(who, id, of, is_stale)| Step::Release { who, id, of, is_stale }),
        2 => (any::<u8>(), id(), 0u8..6).prop_map(|(who, id, back)| Step::Cancel { who, id, back }),
        1 => (any::<u8>(), 0u8..6).prop_map(|(who, back)| Step::CancelWait { who, back }),
        1 => (prop::collection::vec(any::<u8>(), 1..4), any::<bool>())
            .prop_map(|(who, is_closed)| Step::End { who, is_closed }),
        1 => (any::<u8>(), 0u32..4_000).prop_map(|(who, ms)| Step::Silent { who, ms }),
        1 => any::<u8>().prop_map(|who| Step::Returned { who }),
        2 => Just(Step::Reap),
        1 => Just(Step::Blank),
        1 => Just(Step::EndQuiet),
    ]
}

pub(super) fn limits() -> impl Strategy<Value = Limits> {
    (4u32..7, 2u32..12, 2u32..12, 3u32..16).prop_map(|(transitions, holders, waiters, locks)| Limits {
        sessions_max: 6,
        locks_max: 3,
        holders_per_lock_max: holders,
        waiters_per_lock_max: waiters,
        locks_per_session_max: locks,
        acquires_per_hold_max: 2,
        transitions_per_entry_max: transitions,
        ..Limits::default()
    })
}

/// A table, and what an observer of its outcomes knows.
pub(super) struct Run {
    pub(super) table: Table,
    sessions: Vec<SessionId>,
    /// The greatest token of every name.
    tokens: BTreeMap<&'static str, FencingToken>,
    /// The greatest token of an exclusive grant of every name.
    exclusive: BTreeMap<&'static str, FencingToken>,
    /// Acquires whose cancel was answered `OK`.
    cancelled: BTreeSet<(SessionId, RequestId)>,
    /// Every entry.
    pub(super) log: Vec<Applied>,
}

/// An entry, and what came of it.
pub(super) struct Applied {
    pub(super) payload: Vec<u8>,
    pub(super) outcomes: Outcomes,
    pub(super) digest: u64,
}

impl Run {
    pub(super) fn new(limits: Limits) -> Run {
        Run {
            table: Table::new(EPOCH, limits),
            sessions: Vec::new(),
            tokens: BTreeMap::new(),
            exclusive: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            log: Vec::new(),
        }
    }

    fn session(&self, who: u8) -> SessionId {
        match self.sessions.len() {
            0 => SessionId(0),
            len => self.sessions[usize::from(who) % len],
        }
    }

    fn next_id(&self, session: SessionId) -> u64 {
        self.table.session(session).map_or(1, |session| session.next_request_id().0)
    }

    fn request_id(&self, session: SessionId, id: Id) -> RequestId {
        let next = self.next_id(session);
        RequestId(match id {
            Id::Ahead(by) => next + u64::from(by) - 1,
            Id::Back(by) => next.saturating_sub(u64::from(by)),
        })
    }

    pub(super) fn step(&mut self, step: &Step) {
        let no_ids = Rows::Slice(&[]);
        match step {
            Step::Open { nonce } => {
                let (client_id, nonce) = ("client", Nonce([*nonce; 16]));
                self.apply(&Command::OpenSession { client_id, ttl_ms: 5_000, nonce });
            }
            Step::Acquire { who, id, name, owner, is_shared, is_reentrant, wait_ms, seen } => {
                let session = self.session(*who);
                let next = self.next_id(session);
                let seen: Vec<RequestId> =
                    seen.iter().map(|back| RequestId(next.saturating_sub(u64::from(*back)))).collect();
                let names = [NAMES[usize::from(*name) % NAMES.len()]];
                self.request(&Command::Acquire(Acquire {
                    mutation: Mutation {
                        session,
                        request_id: self.request_id(session, *id),
                        seen: Rows::Slice(&seen),
                    },
                    owner: Owner(u64::from(*owner)),
                    mode: if *is_shared { Mode::Shared } else { Mode::Exclusive },
                    is_reentrant: *is_reentrant,
                    permits: 0,
                    wait_ms: *wait_ms,
                    lock_delay_ms: 0,
                    max_hold_ms: 0,
                    names: Rows::Slice(&names),
                    data: &[*owner],
                }));
            }
            Step::Release { who, id, of, is_stale } => {
                let session = self.session(*who);
                let claims: Vec<_> =
                    self.table.session(session).into_iter().flat_map(|session| session.claims()).collect();
                if claims.is_empty() {
                    return;
                }
                let claim = claims[usize::from(*of) % claims.len()];
                let (acquire_id, name) = (claim.acquire_id, claim.name.to_owned());
                let token = FencingToken(claim.token.0 + u64::from(*is_stale));
                let mutation = Mutation { session, request_id: self.request_id(session, *id), seen: no_ids };
                self.request(&Command::Release { mutation, acquire_id, name: &name, token });
            }
            Step::Cancel { who, id, back } => {
                let session = self.session(*who);
                let acquire_id = RequestId(self.next_id(session).saturating_sub(u64::from(*back)));
                let mutation = Mutation { session, request_id: self.request_id(session, *id), seen: no_ids };
                self.request(&Command::Cancel { mutation, acquire_id });
            }
            Step::CancelWait { who, back } => {
                let session = self.session(*who);
                let acquire_id = RequestId(self.next_id(session).saturating_sub(u64::from(*back)));
                self.apply(&Command::CancelWait { session, acquire_id });
            }
            Step::End { who, is_closed } => {
                let reason = if *is_closed { EndReason::Closed } else { EndReason::Expired };
                let ids: Vec<SessionId> = who.iter().map(|who| self.session(*who)).collect();
                self.apply(&Command::EndSessions { reason, sessions: Rows::Slice(&ids) });
            }
            Step::Silent { who, ms } => {
                let silences = [Silence { session: self.session(*who), ms: *ms }];
                self.apply(&Command::SessionsSilent { silences: Rows::Slice(&silences) });
            }
            Step::Returned { who } => {
                let sessions = [self.session(*who)];
                self.apply(&Command::SessionsReturned { sessions: Rows::Slice(&sessions) });
            }
            Step::Reap => drop(self.apply(&Command::Reap)),
            Step::Blank => drop(self.apply(&Command::Blank)),
            Step::EndQuiet => drop(self.apply(&Command::EndQuiet)),
        }
    }

    /// Goes on with what the cell is restored to under the next epoch. Its sessions are still asked for.
    pub(super) fn restore(&mut self) {
        let epoch = Epoch(self.table.epoch().0 + 1);
        self.table = self.table.restored(epoch).expect("the epoch is above");
        assert_coherent(&self.table);
        self.cancelled.clear();
        self.log.clear();
    }

    /// Applies a request twice: what was foreseen is answered, and the retry changes nothing.
    fn request(&mut self, command: &Command<'_>) {
        let foreseen = self.table.replay(command);
        let answer = self.own_answer(command);
        if let (Some(foreseen), false) = (foreseen, has_seen(command)) {
            assert_eq!(answer, foreseen, "a retry is answered without an entry as with one");
        }
        let digest = self.table.digest();
        let (foreseen, again) = (self.table.replay(command), self.own_answer(command));
        let is_refused = matches!(answer, Answer::Limit(_) | Answer::Invalid(_) | Answer::Unsupported(_));
        if !is_refused {
            assert_eq!(foreseen, Some(again), "what was consumed is a retry");
            assert!(is_repeat(answer, again), "{answer:?} became {again:?} at {command:?}");
        }
        assert_eq!(self.table.digest(), digest, "a retry changes nothing");
    }

    fn own_answer(&mut self, command: &Command<'_>) -> Answer {
        let (own_session, own_id) = match command {
            Command::Acquire(acquire) => (acquire.mutation.session, acquire.mutation.request_id),
            Command::Cancel { mutation, .. } | Command::Release { mutation, .. } => {
                (mutation.session, mutation.request_id)
            }
            other => panic!("{other:?} is not a request"),
        };
        let out = self.apply(command);
        let own = out.iter().find_map(|outcome| match outcome {
            Outcome::Reply { session, request_id, answer } => {
                (*session == own_session && *request_id == own_id).then_some(*answer)
            }
            _ => None,
        });
        let answer = own.expect("every request is answered by its entry");
        if let (Command::Cancel { acquire_id, .. }, Answer::Done) = (command, answer) {
            self.cancelled.insert((own_session, *acquire_id));
        }
        answer
    }

    fn apply(&mut self, command: &Command<'_>) -> Outcomes {
        let waiting: BTreeMap<&str, Vec<(SessionId, RequestId)>> =
            NAMES.iter().map(|name| (*name, self.waiting(name))).collect();
        let mut payload = Vec::new();
        command.encode(&mut payload);
        let command = Command::decode(&payload).expect("what was encoded decodes");
        // Only large tables are looked ahead of in earnest. What it finds may be there no more, or not yet.
        let before = self.log.iter().rev().map(|applied| &applied.payload[..]);
        self.table.look_ahead(std::iter::once(&payload[..]).chain(before));
        let mut out = Vec::new();
        self.table.apply(self.table.applied().next(), &command, &mut out);
        assert_coherent(&self.table);
        let (outcomes, digest) = (out.clone(), self.table.digest());
        for outcome in &out {
            match outcome {
                Outcome::Opened { session, is_new: true, .. } => self.sessions.push(*session),
                Outcome::Reply { session, request_id, answer: Answer::Granted(grant) }
                    if grant.token.0 == self.table.revision().0 =>
                {
                    assert!(!self.table.is_quiet(), "nothing is granted while the cell is quiet");
                    self.observe_grant(*session, *request_id, grant.token, grant.fence, &waiting);
                }
                _ => {}
            }
        }
        self.observe_tokens();
        for (session, acquire_id) in &self.cancelled {
            let mut claims = self.table.session(*session).into_iter().flat_map(|session| session.claims());
            assert!(claims.all(|claim| claim.acquire_id != *acquire_id), "what was cancelled stays so");
        }
        let is_needed = out.last() == Some(&Outcome::ReapNeeded);
        assert_eq!(is_needed, self.table.needs_reaping(), "what is left over is told");
        self.log.push(Applied { payload, outcomes, digest });
        out
    }

    fn waiting(&self, name: &str) -> Vec<(SessionId, RequestId)> {
        self.table.lock(name).waiters().map(|waiter| (waiter.session, waiter.acquire_id)).collect()
    }

    /// A grant by this entry: its token is the greatest so far, its fence is above every exclusive one before, and
    /// nobody who was ahead of it in line is still waiting.
    fn observe_grant(
        &mut self,
        session: SessionId,
        acquire_id: RequestId,
        token: FencingToken,
        fence: FencingToken,
        waiting: &BTreeMap<&str, Vec<(SessionId, RequestId)>>,
    ) {
        let reading = self.table.session(session).expect("nobody is granted and ended in one entry");
        let claim = reading.claims().find(|claim| claim.acquire_id == acquire_id).expect("a grant is a hold");
        let name = NAMES.into_iter().find(|name| *name == claim.name).expect("the name is one of ours");
        assert_eq!((claim.token, claim.fence), (token, fence));
        let greatest = self.tokens.get(name).copied().unwrap_or_default();
        assert!(token > greatest, "{name} was granted {greatest} before {token}");
        let exclusive = self.exclusive.get(name).copied().unwrap_or_default();
        assert!(fence > exclusive, "{name}: fence {fence} is not above {exclusive}");
        let before = &waiting[name];
        let ahead = before.iter().take_while(|waiter| **waiter != (session, acquire_id));
        let still = self.waiting(name);
        for waiter in ahead {
            assert!(!still.contains(waiter), "{waiter:?} was passed by {session}.{acquire_id}");
        }
    }

    fn observe_tokens(&mut self) {
        for name in NAMES {
            for holder in self.table.lock(name).holders() {
                let greatest = self.tokens.entry(name).or_default();
                *greatest = holder.token.max(*greatest);
                if self.table.lock(name).mode() == Some(Mode::Exclusive) {
                    self.exclusive.insert(name, holder.token);
                }
            }
        }
    }

    /// Reaps to the end, then ends everybody: nothing is left.
    fn wind_up(&mut self) {
        let sessions = self.sessions.clone();
        self.apply(&Command::EndSessions { reason: EndReason::Expired, sessions: Rows::Slice(&sessions) });
        for name in NAMES {
            assert_eq!(self.table.lock(name).holders().count(), 0, "an ended session holds nothing");
        }
        for _ in 0..1_000 {
            if !self.table.needs_reaping() {
                break;
            }
            self.apply(&Command::Reap);
        }
        assert!(!self.table.needs_reaping(), "reaping comes to its end");
        assert_eq!((self.table.sessions_len(), self.table.locks_len()), (0, 0), "nothing is left");
    }
}

fn has_seen(command: &Command<'_>) -> bool {
    matches!(command, Command::Acquire(acquire) if !acquire.mutation.seen.is_empty())
}

/// Whether the second answer is what a retry of a request with the first may be told.
fn is_repeat(first: Answer, again: Answer) -> bool {
    match (first, again) {
        (Answer::Done | Answer::StaleToken, Answer::StaleRequest) => true,
        _ => first == again,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_random_history_keeps_the_contract(
        limits in limits(),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut run = Run::new(limits);
        for nonce in 0..3 {
            run.step(&Step::Open { nonce });
        }
        steps.iter().for_each(|step| run.step(step));
        run.wind_up();
    }

    #[test]
    fn a_restored_cell_keeps_the_contract_with_the_old_ones_tokens_and_sessions(
        limits in limits(),
        before in prop::collection::vec(step(), 1..80),
        after in prop::collection::vec(step(), 1..150),
    ) {
        let mut run = Run::new(limits);
        before.iter().for_each(|step| run.step(step));
        run.restore();
        for session in run.sessions.clone() {
            prop_assert_eq!(run.table.session(session).err(), Some(Answer::SessionExpired));
        }
        for nonce in 0..3 {
            run.step(&Step::Open { nonce });
        }
        after.iter().for_each(|step| run.step(step));
        run.step(&Step::EndQuiet);
        run.wind_up();
    }

    #[test]
    fn replicas_that_applied_the_same_entries_agree(
        limits in limits(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut one = Run::new(limits);
        let mut other = Run::new(limits);
        for step in &steps {
            one.step(step);
            other.step(step);
            prop_assert_eq!(one.table.digest(), other.table.digest());
        }
    }

    #[test]
    fn walks_in_pieces_visit_every_live_session_and_wait_once(
        limits in limits(),
        steps in prop::collection::vec(step(), 1..80),
        piece in 1u32..4,
    ) {
        let mut run = Run::new(limits);
        steps.iter().for_each(|step| run.step(step));
        let (mut sessions, mut waits, mut cursor) = (Vec::new(), Vec::new(), Some(0));
        while let Some(from) = cursor {
            cursor = run.table.walk_sessions(from, piece, |step| sessions.push((step.session, step.slot)));
        }
        cursor = Some(0);
        while let Some(from) = cursor {
            cursor = run.table.walk_waits(from, piece, |step| waits.push((step.session, step.acquire_id)));
        }
        for (session, slot) in &sessions {
            prop_assert_eq!(run.table.slot_of(*session), Some(*slot));
        }
        let mut live: Vec<SessionId> =
            run.sessions.iter().copied().filter(|id| run.table.session(*id).is_ok()).collect();
        let mut visited: Vec<SessionId> = sessions.into_iter().map(|(session, _)| session).collect();
        live.sort();
        visited.sort();
        prop_assert_eq!(visited, live);
        let mut waiting: Vec<_> = NAMES.iter().flat_map(|name| run.waiting(name)).collect();
        waiting.sort();
        waits.sort();
        prop_assert_eq!(waits, waiting);
    }
}

#[test]
#[should_panic(expected = "comes after")]
fn an_entry_is_not_applied_twice() {
    let mut table = Table::new(EPOCH, Limits::default());
    table.apply(LogIndex(1), &Command::Blank, &mut Vec::new());
    table.apply(LogIndex(1), &Command::Blank, &mut Vec::new());
}
