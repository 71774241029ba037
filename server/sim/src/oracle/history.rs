//! What clients of a real cell have seen, held against the log that the cell came to agree on.
//!
//! Invariant: events stand in the order of one clock: an asking was noted before it was sent, an answer after it had come,
//! and a belief at the moment at which it was held. So whatever an earlier event tells had happened when a later one
//! was noted. Deliberately absent: how the events and the log were come by, and true time; only order counts.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_core::table::{Answer, Limits, Outcome};
use lockstep_wire::entry::Command;
use lockstep_wire::reply::Grant;
use lockstep_wire::request::Mode;
use lockstep_wire::{CellId, Epoch, FencingToken, LogIndex, NodeId, Owner, RequestId, SessionId, Term};

use super::commitment::Commitment;
use super::durability::Acknowledgements;
use super::exclusion::{Belief, Holder, Resources, Write, check_beliefs};
use super::expiry::{self, Lease};
use super::line::Lines;
use super::reading::Readings;
use super::token::{Tokens, Told};
use super::{Verdict, Violation, violated};
use crate::reference::compare::lock_of;
use crate::reference::twins::Twins;

const ONCE: &str = "a request is carried out once, and as it was told (contract 5 and 6)";

/// Who holds a lock: session, acquire, token.
pub type Holders = Vec<(SessionId, RequestId, FencingToken)>;

/// The log of a replica: entry `i + 1` by term and payload.
pub type ReplicaLog = Vec<(Term, Vec<u8>)>;

/// Something that a client did or was told. Every acquire asks as an owner that nobody else uses, by which the log
/// tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session is open.
    Opened {
        /// Which.
        session: SessionId,
    },
    /// A lock is asked for.
    Asked {
        /// Who asks.
        client: usize,
        /// In which session.
        session: SessionId,
        /// As which owner.
        owner: Owner,
        /// The lock.
        name: String,
        /// How it is to be held.
        mode: Mode,
    },
    /// It is granted.
    Granted {
        /// To whom.
        owner: Owner,
        /// The token.
        token: FencingToken,
        /// The fence.
        fence: FencingToken,
    },
    /// It was not granted and will not be.
    Denied {
        /// To whom.
        owner: Owner,
    },
    /// The holder writes to what the lock protects.
    Wrote {
        /// Who.
        owner: Owner,
        /// Until when it believes in its session, in ns; 0 when it does not.
        safe_until: u64,
        /// What that clock shows at this moment.
        now: u64,
    },
    /// It has given the lock back.
    Released {
        /// Who.
        owner: Owner,
    },
    /// The cell has said that a session has ended.
    Ended {
        /// Which.
        session: SessionId,
    },
    /// A lock is looked at.
    Looking {
        /// Names the read.
        read: u64,
        /// The lock.
        name: String,
    },
    /// What was shown.
    Looked {
        /// Which read.
        read: u64,
        /// As of which entry.
        revision: LogIndex,
        /// Who holds it.
        holders: Holders,
    },
}

/// What a history amounts to; what did not happen was not tested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Entries of the log.
    pub entries: usize,
    /// Sessions that the log ended and no client closed.
    pub expired: usize,
    /// Grants that clients were told of.
    pub grants: usize,
    /// Acquires of which clients were told that they came to nothing.
    pub denials: usize,
    /// Releases that were acknowledged.
    pub releases: usize,
    /// Writes that the resources let through.
    pub writes: u64,
    /// Writes that they kept out.
    pub stale_writes: u64,
    /// Reads.
    pub reads: usize,
}

/// An acquire, by what the log says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Logged {
    session: SessionId,
    requests: BTreeSet<RequestId>,
    name: String,
    mode: Mode,
    grants: BTreeSet<(FencingToken, FencingToken)>,
}

/// The log, read from the first entry to the last.
#[derive(Debug)]
struct Reading {
    acknowledgements: Acknowledgements,
    readings: Readings,
    acquires: BTreeMap<Owner, Logged>,
    /// Which owner a request of a session belongs to.
    owners: BTreeMap<(SessionId, RequestId), Owner>,
    ended: BTreeMap<SessionId, LogIndex>,
    /// Where an owner's hold ended.
    left: BTreeMap<Owner, LogIndex>,
    expired: usize,
}

/// Judges a history by the logs of all replicas, cut off where all of them have applied.
///
/// # Errors
/// The first rule that does not hold.
pub fn judge(events: &[Event], logs: &[ReplicaLog]) -> Result<Tally, Violation> {
    let log = one_log(logs)?;
    let mut reading = Reading::of(log)?;
    check_standing_beliefs(events)?;
    let mut replay = Replay::default();
    for event in events {
        replay.on_event(event, &mut reading)?;
    }
    Ok(Tally {
        entries: log.len(),
        expired: reading.expired,
        writes: replay.resources.accepted,
        stale_writes: replay.resources.refused,
        ..replay.tally
    })
}

/// The log of all replicas, once it is certain that there is one.
fn one_log(logs: &[ReplicaLog]) -> Result<&ReplicaLog, Violation> {
    let mut commitment = Commitment::default();
    for (at, log) in logs.iter().enumerate() {
        let node = NodeId(u16::try_from(at + 1).expect("a cell is small"));
        for (position, (term, payload)) in log.iter().enumerate() {
            commitment.on_applied(node, LogIndex(position as u64 + 1), *term, payload, *term)?;
        }
    }
    Ok(logs.iter().max_by_key(|log| log.len()).expect("a cell has a replica"))
}

impl Reading {
    fn of(log: &ReplicaLog) -> Result<Reading, Violation> {
        let mut reading = Reading {
            acknowledgements: Acknowledgements::default(),
            readings: Readings::default(),
            acquires: BTreeMap::new(),
            owners: BTreeMap::new(),
            ended: BTreeMap::new(),
            left: BTreeMap::new(),
            expired: 0,
        };
        let mut twins = Twins::new(Epoch(0), Limits::default(), true);
        let mut lines = Lines::new(Limits::default().holders_per_lock_max);
        let mut names = BTreeSet::new();
        for (position, (_, payload)) in log.iter().enumerate() {
            let index = LogIndex(position as u64 + 1);
            let command = match Command::decode(payload) {
                Ok(command) => command,
                Err(error) => {
                    return violated(
                        "what is accepted replays (contract 8)",
                        format!("entry {index}: {error}"),
                    );
                }
            };
            if let Command::Acquire(acquire) = &command {
                names.extend(acquire.names.iter().map(str::to_owned));
                reading.on_acquire(acquire);
            }
            let outcomes = match twins.apply(index, &command) {
                Ok(outcomes) => outcomes,
                Err(difference) => {
                    return violated("the table does what docs/SEMANTICS.md says", difference.to_string());
                }
            };
            lines.on_entry(index, &command, &outcomes)?;
            reading.on_outcomes(index, &outcomes);
            reading.readings.on_entry(index);
            for name in &names {
                reading.readings.on_lock(name, lock_of(twins.table(), name).as_seen());
            }
        }
        Ok(reading)
    }

    fn on_acquire(&mut self, acquire: &lockstep_wire::request::Acquire<'_>) {
        let (session, request) = (acquire.mutation.session, acquire.mutation.request_id);
        let logged = self.acquires.entry(acquire.owner).or_insert_with(|| Logged {
            session,
            requests: BTreeSet::new(),
            name: acquire.names.iter().next().unwrap_or_default().to_owned(),
            mode: acquire.mode,
            grants: BTreeSet::new(),
        });
        logged.requests.insert(request);
        self.owners.insert((session, request), acquire.owner);
    }

    fn on_outcomes(&mut self, index: LogIndex, outcomes: &[Outcome]) {
        self.acknowledgements.on_entry(index, outcomes);
        for outcome in outcomes {
            if let Outcome::Reply { session, request_id, answer: Answer::Granted(grant) } = outcome
                && let Some(owner) = self.owners.get(&(*session, *request_id))
                && let Some(logged) = self.acquires.get_mut(owner)
            {
                logged.grants.insert((grant.token, grant.fence));
            }
            if let Outcome::HoldEnded { session, acquire_id, .. } = outcome
                && let Some(owner) = self.owners.get(&(*session, *acquire_id))
            {
                self.left.insert(*owner, index);
            }
            if let Outcome::SessionEnded { session, reason, .. } = outcome {
                self.ended.insert(*session, index);
                self.expired += usize::from(*reason == lockstep_wire::reply::EndReason::Expired);
            }
        }
    }
}

/// An acquire, by what its client knows.
#[derive(Clone, Debug)]
struct Asked {
    holder: Holder,
    session: SessionId,
    name: String,
    mode: Mode,
    floor: FencingToken,
    grant: Option<(FencingToken, FencingToken)>,
}

impl Asked {
    fn resource(&self) -> (CellId, String) {
        (CellId(0), self.name.clone())
    }
}

/// The events, gone through once.
#[derive(Debug, Default)]
struct Replay {
    resources: Resources,
    tokens: Tokens,
    asked: BTreeMap<Owner, Asked>,
    looks: BTreeMap<u64, (String, LogIndex)>,
    /// The newest entry that anybody was told of: it, and all before it, had committed by then.
    known: LogIndex,
    tally: Tally,
}

impl Replay {
    fn on_event(&mut self, event: &Event, reading: &mut Reading) -> Verdict {
        match event {
            Event::Opened { session } => {
                self.learn(Some(session_index(*session)), reading);
                reading.acknowledgements.on_opened(*session).map(|_| ())
            }
            Event::Asked { client, session, owner, name, mode } => {
                let floor = self.tokens.floor(&(CellId(0), name.clone()));
                let (holder, session) = ((*client, session.0, owner.0), *session);
                let asked = Asked { holder, session, name: name.clone(), mode: *mode, floor, grant: None };
                self.asked.insert(*owner, asked);
                Ok(())
            }
            Event::Granted { owner, token, fence } => self.on_granted(*owner, (*token, *fence), reading),
            Event::Denied { owner } => {
                self.tally.denials += 1;
                match reading.acquires.get(owner).filter(|logged| !logged.grants.is_empty()) {
                    Some(logged) => violated(
                        ONCE,
                        format!("{owner:?} was told that it is not granted, and the log has {logged:?}"),
                    ),
                    None => Ok(()),
                }
            }
            Event::Wrote { owner, safe_until, now } => self.on_write(*owner, (*safe_until, *now), reading),
            Event::Released { owner } => {
                let asked = self.asked[owner].clone();
                self.tally.releases += 1;
                let Some(left) = reading.left.get(owner).copied() else {
                    return violated(
                        "nothing acknowledged is lost (contract 8)",
                        format!(
                            "{asked:?} was told that it gave its hold back, and no committed entry says so"
                        ),
                    );
                };
                self.learn(Some(left), reading);
                Ok(())
            }
            Event::Ended { session } => {
                self.learn(reading.ended.get(session).copied(), reading);
                reading.acknowledgements.on_session_ended(*session, None).map(|_| ())
            }
            Event::Looking { read, name } => {
                self.looks.insert(*read, (name.clone(), reading.readings.floor()));
                Ok(())
            }
            Event::Looked { read, revision, holders } => {
                let (name, floor) = &self.looks[read];
                self.tally.reads += 1;
                let verdict = reading.readings.on_holders_read(name, *revision, holders, *floor);
                self.learn(Some(*revision), reading);
                verdict
            }
        }
    }

    /// Somebody was told of what an entry did.
    fn learn(&mut self, index: Option<LogIndex>, reading: &mut Reading) {
        if let Some(index) = index {
            self.known = self.known.max(index);
            reading.readings.on_acknowledged(index);
        }
    }

    fn on_granted(
        &mut self,
        owner: Owner,
        (token, fence): (FencingToken, FencingToken),
        reading: &mut Reading,
    ) -> Verdict {
        let asked = self.asked.get_mut(&owner).expect("what is granted was asked for");
        asked.grant = Some((token, fence));
        let asked = asked.clone();
        self.tally.grants += 1;
        self.learn(Some(token.index()), reading);
        let (resource, grantee, mode) = (asked.resource(), (asked.session, owner), asked.mode);
        self.tokens.on_granted(&Told { resource, grantee, mode, token, fence, floor: asked.floor })?;
        let logged = reading.acquires.get(&owner);
        let request = logged.and_then(|logged| logged.requests.first().copied()).unwrap_or_default();
        let grant = Grant { token, fence, slot: 0, hold_left_ms: 0, holders: 0 };
        reading.acknowledgements.on_answered((asked.session, request), &Answer::Granted(grant))?;
        let is_right = logged.is_some_and(|logged| {
            let same = (&logged.name, logged.mode, logged.session) == (&asked.name, mode, asked.session);
            same && logged.requests.len() == 1 && logged.grants.len() == 1
        });
        if is_right {
            return Ok(());
        }
        violated(
            ONCE,
            format!("{asked:?} was told of token {token} and fence {fence}, and the log has {logged:?}"),
        )
    }

    fn on_write(&mut self, owner: Owner, (safe_until, now): (u64, u64), reading: &Reading) -> Verdict {
        let asked = self.asked[&owner].clone();
        let (_, fence) = asked.grant.expect("whoever writes was granted");
        let ends = [reading.ended.get(&asked.session), reading.left.get(&owner)];
        let is_over = ends.into_iter().flatten().any(|index| *index <= self.known);
        if is_over {
            let lease = Lease { session: asked.session, client: asked.holder.0, safe_until, now };
            expiry::on_ended(lease, "is known to hold no more")?;
        }
        let write = Write { resource: asked.resource(), holder: asked.holder, mode: asked.mode, fence };
        self.resources.on_write(&write, now < safe_until).map(|_| ())
    }
}

/// From its grant to its last write by right, somebody believed that it holds; nobody else may have done so meanwhile.
fn check_standing_beliefs(events: &[Event]) -> Verdict {
    let mut last_by_right = BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        if let Event::Wrote { owner, safe_until, now } = event
            && now < safe_until
        {
            last_by_right.insert(*owner, at);
        }
    }
    let mut asked = BTreeMap::new();
    let mut standing: BTreeMap<Owner, Belief> = BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        standing.retain(|owner, _| at <= last_by_right[owner]);
        if let Event::Asked { client, session, owner, name, mode } = event {
            asked.insert(*owner, ((*client, session.0, owner.0), name.clone(), *mode));
        }
        if let Event::Granted { owner, token, fence } = event
            && last_by_right.contains_key(owner)
        {
            let (holder, name, mode) = asked[owner].clone();
            let (token, fence) = (*token, *fence);
            let belief = Belief { resource: (CellId(0), name), holder, mode, token, fence };
            standing.insert(*owner, belief);
            check_beliefs(&standing.values().cloned().collect::<Vec<_>>())?;
        }
    }
    Ok(())
}

/// The entry that opened a session.
fn session_index(session: SessionId) -> LogIndex {
    LogIndex(session.0 & ((1 << 48) - 1))
}

#[cfg(test)]
mod tests {
    use lockstep_wire::reply::EndReason;
    use lockstep_wire::request::{Acquire, Mutation};
    use lockstep_wire::{Nonce, Rows};

    use super::*;

    const ONE: SessionId = SessionId(1);
    const TWO: SessionId = SessionId(2);
    const NAME: &str = "/ls/test/n";

    fn open(nonce: u8) -> Command<'static> {
        Command::OpenSession { client_id: "c", ttl_ms: 1_000, nonce: Nonce([nonce; 16]) }
    }

    fn acquire(session: SessionId, owner: u64) -> Command<'static> {
        Command::Acquire(Acquire {
            mutation: Mutation { session, request_id: RequestId(1), seen: Rows::Slice(&[]) },
            owner: Owner(owner),
            mode: Mode::Exclusive,
            is_reentrant: false,
            permits: 0,
            wait_ms: 60_000,
            lock_delay_ms: 0,
            max_hold_ms: 0,
            names: Rows::Slice(&[NAME]),
            data: b"",
        })
    }

    fn log(commands: &[Command<'_>]) -> ReplicaLog {
        let bytes = |command: &Command<'_>| {
            let mut out = Vec::new();
            command.encode(&mut out);
            (Term(1), out)
        };
        commands.iter().map(bytes).collect()
    }

    /// Two sessions; the first holds (token 3), the second waits (4), the first expires, which grants to the second (5).
    fn succession() -> ReplicaLog {
        let end = Command::EndSessions { reason: EndReason::Expired, sessions: Rows::Slice(&[ONE]) };
        let reap = Command::Reap;
        log(&[open(1), open(2), acquire(ONE, 11), acquire(TWO, 12), end, reap])
    }

    fn asked(session: SessionId, owner: u64) -> Event {
        let (client, name) = (usize::from(session == TWO), NAME.to_owned());
        Event::Asked { client, session, owner: Owner(owner), name, mode: Mode::Exclusive }
    }

    fn granted(owner: u64, token: u64) -> Event {
        let token = FencingToken(token);
        Event::Granted { owner: Owner(owner), token, fence: token }
    }

    fn wrote(owner: u64, safe_until: u64, now: u64) -> Event {
        Event::Wrote { owner: Owner(owner), safe_until, now }
    }

    /// The history of [`succession`] up to the second grant, which the end of the first session makes.
    fn opening() -> Vec<Event> {
        vec![
            Event::Opened { session: ONE },
            Event::Opened { session: TWO },
            asked(ONE, 11),
            granted(11, 3),
            asked(TWO, 12),
            wrote(11, 20, 10),
        ]
    }

    fn rule(events: &[Event], logs: &[ReplicaLog]) -> Option<&'static str> {
        judge(events, logs).err().map(|violation| violation.rule)
    }

    #[test]
    fn a_hand_over_after_the_deadline_is_in_order() {
        let mut events = opening();
        events.extend([granted(12, 5), wrote(11, 20, 21), wrote(12, 40, 22), wrote(11, 20, 23)]);
        let tally = judge(&events, &[succession(), succession()]).unwrap();
        assert_eq!((tally.grants, tally.expired, tally.writes, tally.stale_writes), (2, 1, 3, 1));
    }

    #[test]
    fn a_belief_that_outlasts_its_session_is_seen() {
        let mut events = opening();
        events.extend([Event::Ended { session: ONE }, wrote(11, 20, 15)]);
        assert_eq!(rule(&events, &[succession()]), Some("expiry is never early (contract 2)"));
    }

    #[test]
    fn two_beliefs_in_one_lock_are_seen() {
        let mut events = opening();
        events.extend([granted(12, 5), wrote(12, 40, 14), wrote(11, 20, 15)]);
        assert_eq!(rule(&events, &[succession()]), Some("mutual exclusion (contract 1)"));
    }

    #[test]
    fn an_acknowledgement_that_no_replica_kept_is_seen() {
        let mut short = succession();
        short.truncate(2);
        assert_eq!(rule(&opening(), &[short]), Some("nothing acknowledged is lost (contract 8)"));
    }

    #[test]
    fn replicas_that_differ_are_seen() {
        let mut other = succession();
        other[3] = (Term(2), other[3].1.clone());
        assert_eq!(rule(&[], &[succession(), other]), Some("one log for all replicas (contract 8)"));
    }

    #[test]
    fn a_grant_of_what_was_denied_is_seen() {
        let mut events = opening();
        events.push(Event::Denied { owner: Owner(12) });
        assert_eq!(rule(&events, &[succession()]), Some(ONCE));
    }

    #[test]
    fn a_request_that_ran_twice_is_seen() {
        let mut entries = succession();
        let mut again = Vec::new();
        let Command::Acquire(acquire) = acquire(TWO, 12) else { unreachable!("it acquires") };
        let mutation = Mutation { request_id: RequestId(2), ..acquire.mutation };
        Command::Acquire(Acquire { mutation, ..acquire }).encode(&mut again);
        entries.push((Term(1), again));
        let mut events = opening();
        events.push(granted(12, 5));
        assert_eq!(rule(&events, &[entries]), Some(ONCE));
    }

    #[test]
    fn a_read_of_the_past_is_seen() {
        let mut events = opening();
        events.push(Event::Looking { read: 1, name: NAME.to_owned() });
        events.push(Event::Looked { read: 1, revision: LogIndex(2), holders: Vec::new() });
        assert_eq!(rule(&events, &[succession()]), Some("reads are linearizable (contract 4)"));
    }
}
