//! What clients were told, handed to the oracles.
//!
//! Invariant: every reply to every client is judged by what committed entries say, by what was told before, and by what
//! anybody had been told when it was asked for. Deliberately absent: the rules; those are in `oracle`.

use lockstep_core::table::Answer;
use lockstep_wire::reply::{Attached, Event, KeptAlive, LockView, Refusal, Reply, SessionView};
use lockstep_wire::request::SessionProof;
use lockstep_wire::{CellId, FencingToken, LogIndex, RequestId, Revision, SessionId, Status};

use super::judge::{CellJudges, Judges};
use super::tap::{Asked, AskedMutation, Deed};
use crate::mark::Mark;
use crate::oracle::durability::Origin;
use crate::oracle::once;
use crate::oracle::reading::{Holder, Lock, TokenWord};
use crate::oracle::space::Space;
use crate::oracle::token::Told;
use crate::oracle::{Verdict, violated};

/// What a batch is answered by.
const ROWS: &str = "a batch is answered row by row, and with nobody else's (contract 6)";

impl Judges {
    /// A client is told something that it had asked for.
    pub(super) fn hear(&mut self, cell: CellId, asked: &Asked, reply: &Reply<'_>) {
        self.cell(cell).is_trusted |= is_word_of_born_cell(reply);
        let verdict = self.judge_reply(cell, asked, reply);
        self.take(verdict);
    }

    /// A client is told something that it had not asked for.
    pub(super) fn hear_event(&mut self, cell: CellId, event: &Event<'_>) {
        match event {
            Event::SessionEnded { session, reason } => {
                let judges = self.cell(cell);
                let origin = judges.acknowledgements.on_session_ended(*session, Some(*reason));
                let verdict = judges.acknowledge(origin);
                self.take(verdict);
            }
            Event::HoldEnded { session, acquire_id, token, reason, name } => {
                let judges = self.cell(cell);
                let acquire = (*session, *acquire_id);
                let origin = judges.acknowledgements.on_hold_ended(acquire, name, (*token, *reason));
                let verdict = judges.acknowledge(origin);
                self.take(verdict);
            }
            Event::ShuttingDown { .. } => {}
        }
    }

    fn judge_reply(&mut self, cell: CellId, asked: &Asked, reply: &Reply<'_>) -> Verdict {
        if let (Some(wish), Reply::Refused(refusal)) = (asked.wish(), reply) {
            self.cell(cell).refusals.on_refused(wish, refusal.status)?;
        }
        if let Reply::Refused(refusal) = reply {
            if refusal.status == Status::NoSpace {
                self.set(Mark::NoSpaceTold);
            }
            Space::on_refused(asked.is_new(), refusal.status, || format!("{asked:?}"))?;
        }
        match (asked, reply) {
            (Asked::Opening { opener, known, .. }, Reply::Opened { session, next_request_id, .. }) => {
                let judges = self.cell(cell);
                judges.acknowledge(judges.acknowledgements.on_opened(*session))?;
                judges.nonces.on_told(*session, opener)?;
                let used =
                    known.filter(|(known, _)| known == session).map(|(_, used)| used).unwrap_or_default();
                judges.once.on_next_id(*session, *next_request_id, used)
            }
            (Asked::Attaching(proofs), Reply::Attached(rows)) => {
                if rows.iter().any(|row| row.status == Status::OutcomeUnknown) {
                    self.set(Mark::ConfirmationHeldOff);
                }
                let (asked, told) = (proofs.iter().map(|(proof, _)| proof.session), rows.iter());
                if !asked.eq(told.map(|row| row.session)) {
                    return violated(ROWS, format!("an attach of {proofs:?} is answered by {rows:?}"));
                }
                let mut rows = proofs.iter().zip(rows.iter());
                rows.try_for_each(|((proof, used), row)| self.cell(cell).judge_attached(proof, *used, &row))
            }
            (Asked::Beating(asked), Reply::KeptAlive(rows)) => rows.iter().try_for_each(|row| {
                let KeptAlive { session, status, .. } = row;
                if !asked.contains(&session) {
                    return violated(ROWS, format!("a beat of {asked:?} is answered by {row:?}"));
                }
                self.cell(cell).judge_session_status(session, status)
            }),
            (Asked::Closing(session), Reply::Closed { released_total, released }) => {
                let judges = self.cell(cell);
                let origin = judges.acknowledgements.on_closed(*session, *released_total, released.iter());
                judges.acknowledge(origin)
            }
            (Asked::Closing(session) | Asked::Session { session, .. }, Reply::Refused(refusal)) => {
                self.cell(cell).judge_session_status(*session, refusal.status)
            }
            (Asked::Mutation(asked), reply) => self.judge_mutation(cell, asked, reply),
            (Asked::Lock { name, floor, token_floor }, Reply::Lock(view)) => {
                self.judge_lock(cell, name, (*floor, *token_floor), view)
            }
            (
                Asked::Token { name, token, of, floor, token_floor },
                Reply::Checked { is_current, latest_token, fence_floor },
            ) => {
                let word = TokenWord {
                    token: *token,
                    of: *of,
                    is_current: *is_current,
                    latest: *latest_token,
                    fence_floor: *fence_floor,
                };
                self.cell(cell).readings.on_token_read(name, word, *floor)?;
                self.judge_floor(cell, name, *fence_floor, *token_floor)
            }
            (Asked::Session { session, floor }, Reply::Session(view)) => {
                self.cell(cell).judge_session(*session, *floor, view)
            }
            // Not executed, whatever it was.
            (_, Reply::Refused(_)) | (Asked::Other, _) => Ok(()),
            (asked, reply) => {
                violated("an answer fits its question", format!("{asked:?} is answered by {reply:?}"))
            }
        }
    }

    fn judge_lock(
        &mut self,
        cell: CellId,
        name: &str,
        (floor, token_floor): (LogIndex, FencingToken),
        view: &LockView<'_>,
    ) -> Verdict {
        let holders = view.holders.iter().map(|row| Holder {
            session: row.session,
            owner: row.owner,
            acquire_id: row.acquire_id,
            token: row.token,
            fence: row.fence,
        });
        let waiters = view.waiters.iter().map(|row| (row.session, row.owner, row.acquire_id, row.mode));
        let shown = Lock { holders: holders.collect(), waiters: waiters.collect() };
        let at = (index_of(view.revision), view.fence_floor);
        self.cell(cell).readings.on_lock_read(name, at, &shown, floor)?;
        self.judge_floor(cell, name, view.fence_floor, token_floor)
    }

    fn judge_floor(
        &mut self,
        cell: CellId,
        name: &str,
        floor: FencingToken,
        before: FencingToken,
    ) -> Verdict {
        if floor.0 == 0 { Ok(()) } else { self.tokens.on_floor(&(cell, name.to_owned()), floor, before) }
    }

    fn judge_mutation(&mut self, cell: CellId, asked: &AskedMutation, reply: &Reply<'_>) -> Verdict {
        let judges = self.cell(cell);
        let (session, _) = asked.request;
        let answer = match answer_of(reply) {
            Ok(answer) => answer,
            Err(status) => return judges.judge_session_status(session, status),
        };
        if matches!(answer, Answer::Lost { .. }) {
            self.set(Mark::GrantWasLost);
        }
        let now = self.now;
        let judges = self.cell(cell);
        if answer == Answer::TimedOut {
            judges.waits.on_timed_out(asked.request, now)?;
        }
        let told = once::Told { request: asked.request, content: asked.content, asked: asked.asked, answer };
        judges.once.on_told(told)?;
        judges.acknowledge(judges.acknowledgements.on_answered(asked.request, &answer))?;
        match (&asked.deed, answer) {
            (Deed::Acquire { .. }, Answer::Queued { .. }) => Ok(()),
            (Deed::Acquire { name, owner, mode, token_floor }, Answer::Granted(grant)) => {
                self.tokens.on_granted(&Told {
                    resource: (cell, name.clone()),
                    grantee: (session, *owner),
                    mode: *mode,
                    token: grant.token,
                    fence: grant.fence,
                    floor: *token_floor,
                })
            }
            (Deed::Acquire { .. }, _) => judges.orphans.on_over(asked.request),
            (Deed::Undo(acquire_id), Answer::Done) => judges.orphans.on_over((session, *acquire_id)),
            (Deed::Undo(_), _) => Ok(()),
        }
    }
}

impl CellJudges {
    /// What a client knows from here on, every later read must know.
    fn acknowledge(&mut self, origin: Origin) -> Verdict {
        self.readings.on_acknowledged(origin?);
        Ok(())
    }

    fn judge_attached(&mut self, proof: &SessionProof, used: RequestId, row: &Attached) -> Verdict {
        self.nonces.on_attached(row.session, &proof.nonce, row.status)?;
        match row.status {
            Status::Ok => self.once.on_next_id(row.session, row.next_request_id, used),
            status => self.judge_session_status(row.session, status),
        }
    }

    /// The negative answers about a session are as binding as the others.
    fn judge_session_status(&mut self, session: SessionId, status: Status) -> Verdict {
        match status {
            Status::SessionExpired => self.acknowledge(self.acknowledgements.on_session_ended(session, None)),
            Status::SessionUnknown => self.acknowledgements.on_session_unknown(session),
            _ => Ok(()),
        }
    }

    fn judge_session(&mut self, session: SessionId, floor: LogIndex, view: &SessionView<'_>) -> Verdict {
        let mut claims: Vec<_> = view
            .claims
            .iter()
            .map(|row| (row.acquire_id, row.owner, row.mode, row.token, row.fence, row.name.to_owned()))
            .collect();
        claims.sort();
        self.readings.on_session_read(session, index_of(view.revision), &claims, floor)
    }
}

fn index_of(revision: Revision) -> LogIndex {
    FencingToken(revision.0).index()
}

/// Whether a reply says what only a cell that was born can know.
fn is_word_of_born_cell(reply: &Reply<'_>) -> bool {
    match reply {
        Reply::Opened { .. }
        | Reply::Closed { .. }
        | Reply::Granted(_)
        | Reply::Queued { .. }
        | Reply::TimedOut
        | Reply::Cancelled
        | Reply::AlreadyHeld { .. }
        | Reply::Lost { .. }
        | Reply::Done
        | Reply::StaleToken
        | Reply::Checked { .. }
        | Reply::Lock(_)
        | Reply::Session(_) => true,
        // Their rows may all say no; status and routes are known without a log.
        Reply::Attached(_)
        | Reply::KeptAlive(_)
        | Reply::Status(_)
        | Reply::Members(_)
        | Reply::Transferred { .. }
        | Reply::Routes(_)
        | Reply::SavedPiece(_)
        | Reply::SnapshotGone
        | Reply::Refused(_) => false,
    }
}

/// The answer in the words of committed entries, or the status of what was not executed.
fn answer_of(reply: &Reply<'_>) -> Result<Answer, Status> {
    Ok(match reply {
        Reply::Granted(grant) => Answer::Granted(*grant),
        Reply::Queued { position } => Answer::Queued { position: *position },
        Reply::TimedOut => Answer::TimedOut,
        Reply::Cancelled => Answer::Cancelled,
        Reply::AlreadyHeld { acquire_id, token } => {
            Answer::AlreadyHeld { acquire_id: *acquire_id, token: *token }
        }
        Reply::Lost { token, reason } => Answer::Lost { token: *token, reason: *reason },
        Reply::Done => Answer::Done,
        Reply::StaleToken => Answer::StaleToken,
        Reply::Refused(Refusal { status: Status::StaleRequest, .. }) => Answer::StaleRequest,
        Reply::Refused(refusal) => return Err(refusal.status),
        Reply::Opened { .. }
        | Reply::Attached(_)
        | Reply::KeptAlive(_)
        | Reply::Closed { .. }
        | Reply::Checked { .. }
        | Reply::Lock(_)
        | Reply::Session(_)
        | Reply::Status(_)
        | Reply::Members(_)
        | Reply::Transferred { .. }
        | Reply::Routes(_)
        | Reply::SavedPiece(_)
        | Reply::SnapshotGone => return Err(Status::Invalid),
    })
}
