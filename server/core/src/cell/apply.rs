//! Committed entries into the table, and what comes of them to whoever waits for it.
//!
//! Invariants: every committed entry is applied once and in order; an answer that a wait was still owed
//! goes out before anything that is learned later; a turn applies so much and no more, so that a long log keeps nobody
//! from being heard. Deliberately absent: what an entry does to the state.

use std::collections::VecDeque;

use lockstep_wire::entry::Command;
use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::reply::{Attached, EndReason, Event, KeptAlive, Refusal, Reply};
use lockstep_wire::request::SessionProof;
use lockstep_wire::{LogIndex, RequestId, Rows, SessionId, Status};

use super::Cell;
use super::calls::Call;
use super::digest::DigestBook;
use super::lease::{Leases, Renewal};
use super::question::Question;
use super::view;
use crate::effect::{ConnectionId, Effect, Effects, Report};
use crate::table::{Answer, ENTRIES_AHEAD, Outcome, Outcomes, SessionSlot, Table};
use crate::time::{Span, Time};

/// A session that an entry has opened or found.
struct Opened {
    session: SessionId,
    ttl_ms: u32,
    is_new: bool,
}

impl Cell {
    /// Carries on with everything that the last input made possible, as far as this turn may.
    pub(crate) fn settle(&mut self, now: Time, fx: &mut Effects) {
        while !self.is_halted {
            if let Some(event) = self.raft.poll_event() {
                self.on_raft_event(event, now, fx);
            } else if self.apply_left == 0 || !self.apply_next(now, fx) {
                break;
            }
        }
        while !self.is_halted
            && let Some((call, question)) = self.questions.poll_answerable(self.table.applied())
        {
            self.answer_question(call, question, now, fx);
        }
    }

    /// Lets a large table look ahead, once for each batch of entries.
    fn look_ahead(&mut self) {
        if !self.table.is_large() {
            return;
        }
        let (applied, committed) = (self.table.applied(), self.raft.committed());
        // One alone is looked at soon enough.
        if applied >= self.looked_ahead_through && committed.0 > applied.0 + 1 {
            self.table.look_ahead(self.raft.upcoming());
            self.looked_ahead_through = committed.min(LogIndex(applied.0 + ENTRIES_AHEAD as u64));
        }
    }

    fn apply_next(&mut self, now: Time, fx: &mut Effects) -> bool {
        self.look_ahead();
        let (was_quiet, sessions) = (self.table.is_quiet(), self.table.sessions_len());
        let Some(committed) = self.raft.poll_committed() else { return false };
        let index = committed.index;
        let mut work = 1;
        match Command::decode(committed.payload) {
            Ok(command) => {
                work += sessions_named(&command);
                note_ending(&self.table, &command, &mut self.ending);
                self.table.apply(index, &command, &mut self.outcomes);
                if self.tenure.is_serving() {
                    extend_returned(&self.table, &command, &mut self.leases);
                }
            }
            Err(error) => {
                let cell = self.config.cell;
                self.halt(fx, format!("entry {index} of cell {cell} cannot be applied: {error}"));
                return false;
            }
        }
        if was_quiet && !self.table.is_quiet() && self.tenure.is_serving() {
            fx.push(Effect::Report(Report::QuietEnded));
        }
        let mut outcomes = std::mem::take(&mut self.outcomes);
        work += outcomes.len() + sessions.saturating_sub(self.table.sessions_len());
        self.apply_left = self.apply_left.saturating_sub(work);
        if self.tenure.is_serving() {
            for outcome in outcomes.drain(..) {
                self.on_outcome(index, outcome, now, fx);
            }
            self.tenure.on_applied(index);
            if let Some(call) = self.calls.take_member_change(index) {
                self.answer(call, &Reply::Done, fx);
            }
        } else if self.raft.is_leader() {
            self.on_ends_before_serving(&outcomes, fx);
        }
        outcomes.clear();
        self.outcomes = outcomes;
        self.ending.clear();
        if DigestBook::is_due(index) {
            self.compare_digests(index, fx);
        }
        true
    }

    fn on_outcome(&mut self, index: LogIndex, outcome: Outcome, now: Time, fx: &mut Effects) {
        match outcome {
            Outcome::Reply { session, request_id, answer } => {
                self.route(index, session, request_id, answer, fx);
            }
            Outcome::Opened { session, ttl_ms, is_new } => {
                self.on_opened(index, Opened { session, ttl_ms, is_new }, now, fx);
            }
            Outcome::OpenRefused { answer } => {
                if let Some(call) = self.calls.take_opening(index) {
                    answer_with(self, call, answer, fx);
                }
            }
            Outcome::WaitStarted { session, acquire_id, wait_ms } => {
                let wait_ms = if mutant::is(Mutant::WaitCutShort) { wait_ms / 2 } else { wait_ms };
                self.waits.start(session, acquire_id, now + Span::from_ms(u64::from(wait_ms)));
            }
            Outcome::WaitEnded { session, acquire_id } => self.waits.stop(session, acquire_id),
            Outcome::HoldEnded { session, acquire_id, name, token, reason } => match reason {
                EndReason::Revoked | EndReason::MaxHold => {
                    if let Some(connection) = self.connection_of(session) {
                        let event = Event::HoldEnded { session, acquire_id, token, reason, name: &name };
                        fx.tell(connection, self.config.cell, &event);
                    }
                }
                // Its owner asked for it, or is told that the whole session has ended.
                EndReason::Released
                | EndReason::Cancelled
                | EndReason::Expired
                | EndReason::Closed
                | EndReason::CellRestored => {}
            },
            Outcome::SessionEnded { session, reason, released_total, released } => {
                let released: Vec<&str> = released.iter().map(|name| &**name).collect();
                self.on_session_ended(session, reason, released_total, &released, fx);
            }
            Outcome::ReapNeeded => {}
        }
    }

    /// Sends an answer to whoever waits for it; a queued acquire waits on.
    fn route(
        &mut self,
        index: LogIndex,
        session: SessionId,
        request_id: RequestId,
        answer: Answer,
        fx: &mut Effects,
    ) {
        let call = match answer {
            Answer::Queued { .. } => self.calls.mutation(session, request_id, index),
            Answer::Granted(_)
            | Answer::TimedOut
            | Answer::Cancelled
            | Answer::AlreadyHeld { .. }
            | Answer::Lost { .. }
            | Answer::Done
            | Answer::StaleToken
            | Answer::StaleRequest
            | Answer::Limit(_)
            | Answer::Invalid(_)
            | Answer::Unsupported(_)
            | Answer::SessionExpired
            | Answer::SessionUnknown => self.calls.take_mutation(session, request_id, index),
        };
        if let Some(call) = call {
            answer_with(self, call, answer, fx);
        }
    }

    fn on_opened(&mut self, index: LogIndex, opened: Opened, now: Time, fx: &mut Effects) {
        let Opened { session, ttl_ms, is_new } = opened;
        let call = self.calls.take_opening(index);
        let reading = self.table.session(session).expect("an opened session is there");
        let (slot, next_request_id) = (reading.slot(), reading.next_request_id());
        let ttl = Span::from_ms(u64::from(ttl_ms));
        if is_new {
            self.leases.open(slot, ttl);
        }
        let Some(call) = call else { return };
        self.attach(session, slot, call, fx);
        // The entry of this call was committed in this term, which is as good as a round; but a session
        // whose end, or more of its silence, is on its way must not be acknowledged.
        match self.renew(slot) {
            Renewal::Renewed => {
                self.answer(call, &Reply::Opened { session, ttl_ms, next_request_id }, fx);
            }
            Renewal::Doomed => {
                self.refuse(call, Status::OutcomeUnknown, "the session is about to end; open it again", fx);
            }
            Renewal::Silent => {
                self.log_return(&[session], now, fx);
                self.refuse(call, Status::OutcomeUnknown, "the session was silent; open it again", fx);
            }
        }
    }

    /// Gives the live session in a slot a whole TTL, if it may be acknowledged now.
    fn renew(&mut self, slot: SessionSlot) -> Renewal {
        let session = self.table.session_at(slot).expect("who is acknowledged lives");
        let ttl = Span::from_ms(u64::from(session.ttl_ms()));
        self.leases.renew(slot, ttl, session.silence_ms(), self.table.applied())
    }

    fn on_session_ended(
        &mut self,
        session: SessionId,
        reason: EndReason,
        released_total: u32,
        released: &[&str],
        fx: &mut Effects,
    ) {
        for call in self.calls.take_session(session) {
            self.refuse(call, Status::SessionExpired, reason.name(), fx);
        }
        let closing = self.calls.take_closing(session);
        if let Some(call) = closing {
            match reason {
                EndReason::Closed => {
                    let released = Rows::Slice(released);
                    self.answer(call, &Reply::Closed { released_total, released }, fx);
                }
                EndReason::Released
                | EndReason::Cancelled
                | EndReason::Expired
                | EndReason::Revoked
                | EndReason::MaxHold
                | EndReason::CellRestored => {
                    self.refuse(call, Status::SessionExpired, reason.name(), fx);
                }
            }
        }
        // The record may have been reaped by the same entry.
        let slot = loop {
            let (ended, slot) = self.ending.pop_front().expect("a session that ends was live before");
            if ended == session {
                break slot;
            }
        };
        self.leases.close(slot);
        if closing.is_none()
            && let Some(connection) = self.attachments.connection(session, slot)
        {
            fx.tell(connection, self.config.cell, &Event::SessionEnded { session, reason });
        }
        self.attachments.detach(session, slot);
    }

    /// What was asked of a new leader may be about sessions whose end it has yet to apply: their leases must say
    /// nothing about whoever gets their slots, and a close is answered. An end is irrevocable, so that it may be
    /// told before the leader serves.
    fn on_ends_before_serving(&mut self, outcomes: &Outcomes, fx: &mut Effects) {
        for outcome in outcomes {
            if let Outcome::SessionEnded { session, reason, released_total, released } = outcome {
                let released: Vec<&str> = released.iter().map(|name| &**name).collect();
                self.on_session_ended(*session, *reason, *released_total, &released, fx);
            }
        }
    }

    fn connection_of(&self, session: SessionId) -> Option<ConnectionId> {
        self.attachments.connection(session, self.table.slot_of(session)?)
    }

    fn answer_question(&mut self, call: Call, question: Question, now: Time, fx: &mut Effects) {
        match question {
            Question::KeepAlive { count } => self.acknowledge(call, count, now, fx),
            Question::Attach(proofs) => self.answer_attach(call, &proofs, now, fx),
            Question::Lock(name) => view::lock(self, call, &name, fx),
            Question::Token { name, token, session } => {
                let checked = self.table.check(&name, token, session);
                let reply = Reply::Checked {
                    is_current: checked.is_current,
                    latest_token: checked.latest_token,
                    fence_floor: checked.fence_floor,
                };
                self.answer(call, &reply, fx);
            }
            Question::Members => self.answer(call, &Reply::Done, fx),
            Question::Session(session) => view::session(self, call, session, fx),
            Question::Gone(session) => match self.table.session(session) {
                Ok(_) => self.refuse(call, Status::NotAttached, "", fx),
                Err(answer) => answer_with(self, call, answer, fx),
            },
            Question::Snapshot => self.on_save_confirmed(call, now, fx),
        }
    }

    /// Answers an attach. A session that is silent still is attached, and acknowledged when it asks again.
    fn answer_attach(&mut self, call: Call, proofs: &[SessionProof], now: Time, fx: &mut Effects) {
        let mut rows = Vec::with_capacity(proofs.len());
        let mut silent = Vec::new();
        for proof in proofs {
            let session = proof.session;
            let row = match self.table.session(session) {
                Ok(reading)
                    if reading.is_opened_by(&proof.nonce) || mutant::is(Mutant::AttachWithoutNonce) =>
                {
                    let (slot, ttl_ms) = (reading.slot(), reading.ttl_ms());
                    let next_request_id = reading.next_request_id();
                    self.attach(session, slot, call, fx);
                    match self.renew(slot) {
                        Renewal::Renewed => Attached { session, status: Status::Ok, ttl_ms, next_request_id },
                        Renewal::Doomed => Attached::refused(session, Status::OutcomeUnknown),
                        Renewal::Silent => {
                            silent.push(session);
                            Attached::refused(session, Status::OutcomeUnknown)
                        }
                    }
                }
                Ok(_) => Attached::refused(session, Status::Denied),
                Err(answer) => Attached::refused(session, answer.status()),
            };
            rows.push(row);
        }
        self.log_return(&silent, now, fx);
        self.answer(call, &Reply::Attached(Rows::Slice(&rows)), fx);
    }

    /// Acknowledges the beats that a round has confirmed. A session whose end or whose return is on its way has no row:
    /// no beat waits for an entry.
    fn acknowledge(&mut self, call: Call, count: usize, now: Time, fx: &mut Effects) {
        let mut rows = std::mem::take(&mut self.kept_alive);
        let mut silent = Vec::new();
        for _ in 0..count {
            let session = self.questions.take_beating();
            match self.acknowledge_one(call, session) {
                Ok(row) => rows.extend(row),
                Err(session) => silent.push(session),
            }
        }
        self.log_return(&silent, now, fx);
        self.answer(call, &Reply::KeptAlive(Rows::Slice(&rows)), fx);
        rows.clear();
        self.kept_alive = rows;
    }

    /// What is said to a session's beat, if anything is; the session when it was silent.
    fn acknowledge_one(&mut self, call: Call, session: SessionId) -> Result<Option<KeptAlive>, SessionId> {
        let (status, ttl_ms) = match self.table.session(session) {
            Ok(reading) => {
                let (slot, ttl_ms) = (reading.slot(), reading.ttl_ms());
                if !self.attachments.is_attached(session, slot, call.connection) {
                    (Status::NotAttached, 0)
                } else {
                    match self.renew(slot) {
                        Renewal::Renewed => (Status::Ok, ttl_ms),
                        Renewal::Doomed => return Ok(None),
                        Renewal::Silent => return Err(session),
                    }
                }
            }
            Err(answer) => (answer.status(), 0),
        };
        Ok(Some(KeptAlive { session, status, ttl_ms }))
    }

    /// Logs that these sessions have been heard again, unless that is on its way. They have a whole TTL from now on in
    /// which it may be committed; until then nothing of it is told, and whoever asks again is heard again.
    pub(super) fn log_return(&mut self, sessions: &[SessionId], now: Time, fx: &mut Effects) {
        let mut returning = Vec::with_capacity(sessions.len());
        let applied = self.table.applied();
        for id in sessions {
            if let Ok(session) = self.table.session(*id) {
                let slot = session.slot();
                self.leases.extend(slot, Span::from_ms(u64::from(session.ttl_ms())));
                if !self.leases.is_return_under_way(slot, applied) {
                    returning.push((*id, slot));
                }
            }
        }
        let ids: Vec<SessionId> = returning.iter().map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return;
        }
        // A leader that is about to leave its office appends nothing; its successor will.
        let command = Command::SessionsReturned { sessions: Rows::Slice(&ids) };
        if let Some(index) = self.propose(&command, now, fx) {
            returning.iter().for_each(|(_, slot)| self.leases.on_returning(*slot, index));
        }
    }
}

/// The sessions that have returned live for a whole TTL from now on, whoever waits to be told of it.
fn extend_returned(table: &Table, command: &Command<'_>, leases: &mut Leases) {
    if let Command::SessionsReturned { sessions } = command {
        for session in sessions.iter().filter_map(|id| table.session(id).ok()) {
            leases.extend(session.slot(), Span::from_ms(u64::from(session.ttl_ms())));
        }
    }
}

/// How many sessions an entry that is about many names; what comes of them is counted beside.
fn sessions_named(command: &Command<'_>) -> usize {
    match command {
        Command::SessionsSilent { silences } => silences.len(),
        Command::SessionsReturned { sessions } | Command::EndSessions { sessions, .. } => sessions.len(),
        Command::Blank
        | Command::OpenSession { .. }
        | Command::Acquire(_)
        | Command::Release { .. }
        | Command::Cancel { .. }
        | Command::CancelWait { .. }
        | Command::Reap
        | Command::EndQuiet
        | Command::Members(_) => 0,
    }
}

/// Remembers where the sessions are that an entry is about to end: it may take their records away.
fn note_ending(table: &Table, command: &Command<'_>, ending: &mut VecDeque<(SessionId, SessionSlot)>) {
    if let Command::EndSessions { sessions, .. } = command {
        let live = sessions.iter().filter_map(|id| Some((id, table.session(id).ok()?.slot())));
        ending.extend(live);
    }
}

/// Puts an answer of the table into a reply.
pub(super) fn answer_with(cell: &Cell, call: Call, answer: Answer, fx: &mut Effects) {
    let reply = match answer {
        Answer::Granted(grant) => Reply::Granted(grant),
        Answer::Queued { position } => Reply::Queued { position },
        Answer::TimedOut => Reply::TimedOut,
        Answer::Cancelled => Reply::Cancelled,
        Answer::AlreadyHeld { acquire_id, token } => Reply::AlreadyHeld { acquire_id, token },
        Answer::Lost { token, reason } => Reply::Lost { token, reason },
        Answer::Done => Reply::Done,
        Answer::StaleToken => Reply::StaleToken,
        Answer::Limit(limit) => Reply::Refused(Refusal::new(Status::Limit, limit.name())),
        Answer::Invalid(field) => Reply::Refused(Refusal::new(Status::Invalid, field)),
        Answer::Unsupported(field) => Reply::Refused(Refusal::new(Status::Unsupported, field)),
        Answer::StaleRequest | Answer::SessionExpired | Answer::SessionUnknown => {
            Reply::Refused(Refusal::new(answer.status(), ""))
        }
    };
    cell.answer(call, &reply, fx);
}
