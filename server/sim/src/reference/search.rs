//! Random commands into the real table and the model, side by side.
//!
//! Invariant: after each entry both told the same outcomes in the same order and show the same readings, and the
//! table's digest is that of its state. Limits are drawn small, so that every refusal is reached.

use std::collections::BTreeSet;

use lockstep_core::table::{Answer, Limits, Outcome, Outcomes, Table};
use lockstep_wire::entry::{Command, Silence};
use lockstep_wire::reply::EndReason;
use lockstep_wire::request::{Acquire, Mode, Mutation};
use lockstep_wire::{Epoch, FencingToken, LogIndex, Nonce, Owner, RequestId, Rows, SessionId};

use super::Model;
use super::compare::{Difference, compare};
use crate::oracle::Verdict;
use crate::oracle::line::Lines;
use crate::oracle::once::Once;
use crate::oracle::orphan::Orphans;
use crate::random::{Concern, Stream};

/// A command that owns what it speaks of, so that it can be sent again.
#[derive(Clone, Debug)]
enum Spoken {
    Blank,
    Open {
        client_id: String,
        ttl_ms: u32,
        nonce: Nonce,
    },
    Acquire(SpokenAcquire),
    Cancel {
        session: SessionId,
        request_id: RequestId,
        seen: Vec<RequestId>,
        acquire_id: RequestId,
    },
    Release {
        session: SessionId,
        request_id: RequestId,
        seen: Vec<RequestId>,
        acquire_id: RequestId,
        name: String,
        token: FencingToken,
    },
    CancelWait {
        session: SessionId,
        acquire_id: RequestId,
    },
    EndSessions {
        reason: EndReason,
        sessions: Vec<SessionId>,
    },
    Reap,
    EndQuiet,
    Silent {
        silences: Vec<Silence>,
    },
    Returned {
        sessions: Vec<SessionId>,
    },
}

#[derive(Clone, Debug)]
struct SpokenAcquire {
    session: SessionId,
    request_id: RequestId,
    seen: Vec<RequestId>,
    owner: Owner,
    mode: Mode,
    is_reentrant: bool,
    permits: u16,
    wait_ms: u32,
    lock_delay_ms: u32,
    max_hold_ms: u32,
    names: Vec<String>,
    data: Vec<u8>,
}

impl Spoken {
    fn with<R>(&self, act: impl FnOnce(&Command<'_>) -> R) -> R {
        fn mutation(session: SessionId, request_id: RequestId, seen: &[RequestId]) -> Mutation<'_> {
            Mutation { session, request_id, seen: Rows::Slice(seen) }
        }
        match self {
            Spoken::Blank => act(&Command::Blank),
            Spoken::Reap => act(&Command::Reap),
            Spoken::EndQuiet => act(&Command::EndQuiet),
            Spoken::Open { client_id, ttl_ms, nonce } => {
                act(&Command::OpenSession { client_id, ttl_ms: *ttl_ms, nonce: *nonce })
            }
            Spoken::Acquire(acquire) => {
                let names: Vec<&str> = acquire.names.iter().map(String::as_str).collect();
                act(&Command::Acquire(Acquire {
                    mutation: mutation(acquire.session, acquire.request_id, &acquire.seen),
                    owner: acquire.owner,
                    mode: acquire.mode,
                    is_reentrant: acquire.is_reentrant,
                    permits: acquire.permits,
                    wait_ms: acquire.wait_ms,
                    lock_delay_ms: acquire.lock_delay_ms,
                    max_hold_ms: acquire.max_hold_ms,
                    names: Rows::Slice(&names),
                    data: &acquire.data,
                }))
            }
            Spoken::Cancel { session, request_id, seen, acquire_id } => act(&Command::Cancel {
                mutation: mutation(*session, *request_id, seen),
                acquire_id: *acquire_id,
            }),
            Spoken::Release { session, request_id, seen, acquire_id, name, token } => {
                act(&Command::Release {
                    mutation: mutation(*session, *request_id, seen),
                    acquire_id: *acquire_id,
                    name,
                    token: *token,
                })
            }
            Spoken::CancelWait { session, acquire_id } => {
                act(&Command::CancelWait { session: *session, acquire_id: *acquire_id })
            }
            Spoken::EndSessions { reason, sessions } => {
                act(&Command::EndSessions { reason: *reason, sessions: Rows::Slice(sessions) })
            }
            Spoken::Silent { silences } => act(&Command::SessionsSilent { silences: Rows::Slice(silences) }),
            Spoken::Returned { sessions } => {
                act(&Command::SessionsReturned { sessions: Rows::Slice(sessions) })
            }
        }
    }
}

/// What the search knows of what it has said, to say things that hit.
struct Speaker {
    stream: Stream,
    names: Vec<String>,
    sessions: Vec<SessionId>,
    /// The highest request id used, per session of `sessions`.
    used: Vec<u64>,
    said: Vec<Spoken>,
    tokens: Vec<FencingToken>,
    acquires: Vec<(SessionId, RequestId, String)>,
}

/// Limits small enough to be met.
fn draw_limits(stream: &mut Stream) -> Limits {
    let mut small = |low: u64, high: u64| u32::try_from(stream.between(low, high)).expect("small");
    Limits {
        sessions_max: small(2, 8),
        locks_max: small(1, 5),
        holders_per_lock_max: small(1, 4),
        waiters_per_lock_max: small(1, 6),
        locks_per_session_max: small(1, 8),
        acquires_per_hold_max: small(1, 3),
        name_bytes_max: small(10, 14),
        client_id_bytes_max: small(2, 8),
        data_bytes_max: small(0, 4),
        ttl_ms_min: 1_000,
        ttl_ms_max: small(1_000, 20_000),
        transitions_per_entry_max: small(4, 12),
    }
}

/// Runs `entries` commands drawn from the seed through both.
///
/// Gives what was reached: the answers in words.
///
/// # Errors
/// The first difference, with the entry that showed it.
pub fn search(seed: u64, entries: u64) -> Result<BTreeSet<String>, Difference> {
    let mut reached = BTreeSet::new();
    let (mut speaker, epoch, limits) = Speaker::new(seed);
    let mut table = Table::new(epoch, limits);
    let mut model = Model::new(epoch, limits);
    let mut outcomes = Outcomes::new();
    let restored_after = speaker.restored_after(entries);
    for index in 1..=entries {
        let spoken = speaker.speak();
        let index = LogIndex(index);
        let located = |difference: Difference| Difference {
            subject: format!("seed {seed}, entry {index}: {spoken:?}: {}", difference.subject),
            ..difference
        };
        outcomes.clear();
        let expected = spoken.with(|command| {
            let replayed = (table.replay(command), model.replay(command));
            same_outcomes(&replayed.0, &replayed.1, "replay")?;
            table.apply(index, command, &mut outcomes);
            Ok(model.apply(index, command))
        });
        let expected = expected.map_err(located)?;
        same_outcomes(&outcomes, &expected, "outcomes").map_err(located)?;
        compare(&table, &model).map_err(located)?;
        same_outcomes(&table.digest(), &table.recomputed_digest(), "digest").map_err(located)?;
        speaker.learn(&spoken, &outcomes);
        reached.extend(outcomes.iter().filter_map(in_a_word));
        if restored_after == Some(index) {
            (table, model) = (restored(&table), Model::restored(Epoch(epoch.0 + 1), limits, index));
            compare(&table, &model).map_err(located)?;
            reached.insert("restored".to_owned());
        }
    }
    Ok(reached)
}

/// Runs `entries` commands drawn from the seed through the table, and shows the judges of committed entries what it tells.
///
/// # Errors
/// The first rule that it breaks.
pub fn search_unaided(seed: u64, entries: u64) -> Verdict {
    let (mut speaker, epoch, limits) = Speaker::new(seed);
    let mut table = Table::new(epoch, limits);
    let mut lines = Lines::new(limits.holders_per_lock_max);
    let (mut once, mut orphans) = (Once::default(), Orphans::default());
    let restored_after = speaker.restored_after(entries);
    let mut outcomes = Outcomes::new();
    for index in (1..=entries).map(LogIndex) {
        let spoken = speaker.speak();
        outcomes.clear();
        spoken.with(|command| {
            table.apply(index, command, &mut outcomes);
            lines.on_entry(index, command, &outcomes)?;
            once.on_entry(index, command, &outcomes)?;
            orphans.on_entry(command, &outcomes)
        })?;
        speaker.learn(&spoken, &outcomes);
        if restored_after == Some(index) {
            table = restored(&table);
            lines.on_restored();
        }
    }
    Ok(())
}

/// What a cell begins with that is restored from this one.
fn restored(table: &Table) -> Table {
    table.restored(Epoch(table.epoch().0 + 1)).expect("its epoch is above")
}

fn in_a_word(outcome: &Outcome) -> Option<String> {
    let answer = match outcome {
        Outcome::Reply { answer, .. } | Outcome::OpenRefused { answer } => answer,
        Outcome::Opened { is_new, .. } => return Some(format!("opened new {is_new}")),
        Outcome::HoldEnded { reason, .. } => return Some(format!("hold {}", reason.name())),
        Outcome::ReapNeeded => return Some("reap".to_owned()),
        Outcome::WaitStarted { .. } | Outcome::WaitEnded { .. } | Outcome::SessionEnded { .. } => {
            return None;
        }
    };
    Some(match answer {
        Answer::Limit(limit) => format!("limit {}", limit.name()),
        Answer::Invalid(field) => format!("invalid {field}"),
        Answer::Unsupported(field) => format!("unsupported {field}"),
        Answer::Lost { reason, .. } => format!("lost {}", reason.name()),
        other => other.status().name().to_owned(),
    })
}

fn same_outcomes<T: PartialEq + std::fmt::Debug>(table: &T, model: &T, what: &str) -> Result<(), Difference> {
    if table == model {
        return Ok(());
    }
    Err(Difference { subject: what.to_owned(), table: format!("{table:?}"), model: format!("{model:?}") })
}

impl Speaker {
    /// A speaker, and what the table is to be like.
    fn new(seed: u64) -> (Speaker, Epoch, Limits) {
        let mut stream = Stream::new(seed, Concern::Command, 0);
        // Most runs meet small limits; some have the room for windows and lines to grow.
        let limits = if stream.percent(70) { draw_limits(&mut stream) } else { Limits::default() };
        let epoch = Epoch(u16::try_from(stream.below(3)).expect("small"));
        let names = (0..stream.between(1, 4)).map(|number| format!("/ls/t/{number}")).collect();
        let speaker = Speaker {
            stream,
            names,
            sessions: vec![SessionId(0), SessionId(epoch.with(LogIndex(1 << 40)))],
            used: vec![0, 0],
            said: Vec::new(),
            tokens: vec![FencingToken(1)],
            acquires: Vec::new(),
        };
        (speaker, epoch, limits)
    }

    /// After which entry the cell is restored, if it is.
    fn restored_after(&mut self, entries: u64) -> Option<LogIndex> {
        self.stream.percent(30).then(|| LogIndex(self.stream.between(1, entries)))
    }

    fn speak(&mut self) -> Spoken {
        if !self.said.is_empty() && self.stream.percent(12) {
            return self.again();
        }
        match self.stream.below(100) {
            0..=1 => Spoken::Blank,
            2..=9 => self.open(),
            10..=59 => Spoken::Acquire(self.acquire()),
            60..=68 => self.cancel(),
            69..=85 => self.release(),
            86..=90 => {
                let (session, acquire_id, _) = self.some_acquire();
                Spoken::CancelWait { session, acquire_id }
            }
            91..=94 => self.end_sessions(),
            95 => self.silence(),
            96 => Spoken::Returned { sessions: self.some_sessions() },
            97 => Spoken::EndQuiet,
            _ => Spoken::Reap,
        }
    }

    /// Something said before, perhaps with another wait, other seen ids or other content.
    fn again(&mut self) -> Spoken {
        let recent = self.said.len().min(40);
        let at = self.said.len() - 1 - self.stream.place(recent);
        let mut spoken = self.said[at].clone();
        let changes = self.stream.below(6);
        if let Spoken::Acquire(acquire) = &mut spoken {
            match changes {
                0 => acquire.wait_ms /= 2,
                1 => acquire.mode = Mode::Exclusive,
                2 => acquire.data = vec![9],
                _ => {}
            }
        }
        spoken
    }

    fn session(&mut self) -> usize {
        // The newest are the likeliest to live.
        let recent = self.sessions.len().min(6);
        if self.stream.percent(90) {
            return self.sessions.len() - 1 - self.stream.place(recent);
        }
        self.stream.place(self.sessions.len())
    }

    fn request_id(&mut self, at: usize) -> RequestId {
        let used = self.used[at];
        let id = match self.stream.below(100) {
            0..=79 => used + 1,
            80..=87 => used + self.stream.between(2, 5),
            88..=89 => used + self.stream.between(60, 140),
            90..=98 => self.stream.below(used + 1),
            _ => [u64::MAX, (1 << 63) - 1, 1 << 63][self.stream.place(3)],
        };
        if id < 1 << 40 {
            self.used[at] = used.max(id);
        }
        RequestId(id)
    }

    fn seen(&mut self, below: RequestId) -> Vec<RequestId> {
        let below = below.0.min(1 << 50);
        let low = below.saturating_sub(80);
        let count = if self.stream.percent(60) { 0 } else { self.stream.below(24) };
        (0..count).map(|_| RequestId(self.stream.between(low, below + 2))).collect()
    }

    fn open(&mut self) -> Spoken {
        let length = self.stream.place(10);
        let nonce = Nonce([u8::try_from(self.stream.below(12)).expect("small"); 16]);
        let ttl_ms = u32::try_from(self.stream.below(70_000)).expect("small");
        let client_id = if self.stream.percent(80) { "c".to_owned() } else { "x".repeat(length) };
        Spoken::Open { client_id, ttl_ms, nonce }
    }

    fn name(&mut self) -> String {
        if self.stream.percent(2) {
            return "/ls/t/a-long-name".to_owned();
        }
        let at = self.stream.place(self.names.len());
        self.names[at].clone()
    }

    fn acquire(&mut self) -> SpokenAcquire {
        let at = self.session();
        let request_id = self.request_id(at);
        let seen = self.seen(request_id);
        let odd = self.stream.below(100);
        let names = match odd {
            0 => Vec::new(),
            1 => vec![self.name(), self.name()],
            _ => vec![self.name()],
        };
        SpokenAcquire {
            session: self.sessions[at],
            request_id,
            seen,
            owner: Owner(self.stream.below(3)),
            mode: if self.stream.percent(55) { Mode::Shared } else { Mode::Exclusive },
            is_reentrant: self.stream.percent(40),
            permits: u16::from(odd == 2),
            wait_ms: if self.stream.percent(25) { 0 } else { 1_000 },
            lock_delay_ms: u32::from(odd == 3),
            max_hold_ms: u32::from(odd == 4),
            names,
            data: vec![1; if odd == 5 { 9 } else { 0 }],
        }
    }

    fn some_acquire(&mut self) -> (SessionId, RequestId, String) {
        let recent = self.acquires.len().min(12);
        if recent == 0 || self.stream.percent(10) {
            let at = self.session();
            return (self.sessions[at], RequestId(self.stream.below(self.used[at] + 3)), self.name());
        }
        let at = self.acquires.len() - 1 - self.stream.place(recent);
        self.acquires[at].clone()
    }

    fn cancel(&mut self) -> Spoken {
        let (session, acquire_id, _) = self.some_acquire();
        let at = self.sessions.iter().position(|id| *id == session).unwrap_or(0);
        let request_id = self.request_id(at);
        let seen = self.seen(request_id);
        Spoken::Cancel { session, request_id, seen, acquire_id }
    }

    fn release(&mut self) -> Spoken {
        let (session, acquire_id, name) = self.some_acquire();
        let at = self.sessions.iter().position(|id| *id == session).unwrap_or(0);
        let request_id = self.request_id(at);
        let seen = self.seen(request_id);
        let recent = self.tokens.len().min(8);
        let token = self.tokens[self.tokens.len() - 1 - self.stream.place(recent)];
        Spoken::Release { session, request_id, seen, acquire_id, name, token }
    }

    fn end_sessions(&mut self) -> Spoken {
        let reason = if self.stream.percent(50) { EndReason::Expired } else { EndReason::Closed };
        Spoken::EndSessions { reason, sessions: self.some_sessions() }
    }

    fn some_sessions(&mut self) -> Vec<SessionId> {
        let count = self.stream.between(0, 3);
        let draw = |_| {
            let at = self.session();
            self.sessions[at]
        };
        (0..count).map(draw).collect()
    }

    fn silence(&mut self) -> Spoken {
        let sessions = self.some_sessions();
        let mut ms = || u32::try_from(self.stream.below(3_000)).expect("it is small");
        let silences = sessions.into_iter().map(|session| Silence { session, ms: ms() }).collect();
        Spoken::Silent { silences }
    }

    fn learn(&mut self, spoken: &Spoken, outcomes: &Outcomes) {
        if let Spoken::Acquire(acquire) = spoken {
            let name = acquire.names.first().cloned().unwrap_or_default();
            self.acquires.push((acquire.session, acquire.request_id, name));
        }
        for outcome in outcomes {
            match outcome {
                Outcome::Opened { session, is_new: true, .. } => {
                    self.sessions.push(*session);
                    self.used.push(0);
                }
                Outcome::Reply { session, request_id, answer: Answer::Granted(grant) } => {
                    self.tokens.push(grant.token);
                    // What was granted late is released soon.
                    if let Some(at) =
                        self.acquires.iter().rposition(|(of, id, _)| of == session && id == request_id)
                    {
                        let again = self.acquires[at].clone();
                        self.acquires.push(again);
                    }
                }
                _ => {}
            }
        }
        self.said.push(spoken.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_judges_of_entries_object_to_nothing_that_the_table_does_whatever_is_asked() {
        for seed in 0..400 {
            if let Err(violation) = search_unaided(seed, 300) {
                panic!("seed {seed}: {violation}");
            }
        }
    }

    #[test]
    fn the_table_does_what_the_model_does_whatever_is_asked() {
        let mut reached = BTreeSet::new();
        for seed in 0..400 {
            match search(seed, 300) {
                Ok(words) => reached.extend(words),
                Err(difference) => panic!("{difference}"),
            }
        }
        // What a search does not reach it does not check.
        let listed: Vec<&str> = reached.iter().map(String::as_str).collect();
        expect_test::expect![[r#"
            ALREADY_HELD
            CANCELLED
            OK
            QUEUED
            SESSION_EXPIRED
            SESSION_UNKNOWN
            STALE_REQUEST
            STALE_TOKEN
            TIMED_OUT
            hold cancelled
            hold closed
            hold expired
            hold released
            invalid acquire_id
            invalid client_id
            invalid names
            invalid nonce
            invalid request_id
            limit acquires_per_hold
            limit client_id_bytes
            limit data_bytes
            limit holders_per_lock
            limit locks
            limit locks_per_session
            limit name_bytes
            limit sessions
            limit waiters_per_lock
            lost cancelled
            lost released
            opened new false
            opened new true
            reap
            restored
            unsupported lock_delay_ms
            unsupported max_hold_ms
            unsupported names
            unsupported permits"#]]
        .assert_eq(&listed.join("\n"));
    }
}
