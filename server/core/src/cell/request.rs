//! What clients ask: checked, admitted, and turned into entries or questions.
//!
//! Invariants: a request that is refused here was not executed and changed nothing; a keep-alive is never
//! refused for load (ARCHITECTURE section 6.2); nothing that frees something is refused for want of space.
//! Deliberately absent: what a command does; that is the table's.

use lockstep_wire::entry::Command;
use lockstep_wire::frame::Head;
use lockstep_wire::limit::{LOCK_DELAY_MS_MAX, WAIT_MS_MAX};
use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::reply::{EndReason, Refusal, Reply};
use lockstep_wire::request::{Acquire, Mutation, Request, SessionProof, kind};
use lockstep_wire::{Correlation, DecodeError, LogIndex, Name, RoundId, Rows, SessionId, Status};

use super::apply::answer_with;
use super::calls::{Call, Proposed};
use super::question::Question;
use super::{Cell, view};
use crate::authorization;
use crate::effect::{ConnectionId, Effects};
use crate::raft::Urgency;
use crate::table::SessionSlot;
use crate::time::Time;

/// Entries on their way to a majority from which on acquires are refused; opening a session is refused
/// at half of it, releases and cancels at twice.
pub(crate) const BACKLOG_MAX: u64 = 32_768;
/// Questions of one kind that wait for a round from which on no more are taken.
const QUESTIONS_MAX: usize = 32_768;
/// Beats that wait for a round from which on those of sessions attached elsewhere get no answer.
const STRANGERS_MAX: usize = 1 << 20;
/// When to come back after a refusal for load, in ms.
const RETRY_AFTER_MS: u32 = 50;
/// When to come back after a refusal for want of space, in ms: disks are looked at once a second.
const SPACE_RETRY_AFTER_MS: u32 = 500;

/// How much a request may ask of a busy leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// Frees something: admitted as long as there is any room.
    Frees,
    /// Takes something.
    Takes,
    /// Brings somebody new.
    Opens,
}

impl Cell {
    /// Takes a client's request.
    pub(crate) fn on_request(
        &mut self,
        connection: ConnectionId,
        correlation: Correlation,
        request: &Request<'_>,
        now: Time,
        fx: &mut Effects,
    ) {
        let call = self.receive(connection, correlation, request.kind());
        if !authorization::permits(request) {
            return self.refuse(call, Status::Denied, "this identity may not do that", fx);
        }
        let is_answered_by_all = matches!(request, Request::Status | Request::Members | Request::Routes);
        if !is_answered_by_all && !self.raft.is_leader() {
            return self.refuse_follower(call, fx);
        }
        match request {
            Request::Status => view::status(self, call, now, fx),
            Request::Members => self.answer_members(call, now, fx),
            Request::ChangeMembers(change) => self.on_change_members(call, change, now, fx),
            Request::Routes => view::routes(self, call, fx),
            Request::TransferLeader { to } => self.on_transfer(call, *to, now, fx),
            Request::KeepAlive(sessions) => self.on_keep_alive(call, sessions, fx),
            Request::AttachSessions(proofs) => self.on_attach(call, proofs, now, fx),
            Request::OpenSession { client_id, ttl_ms, nonce } => {
                let command = Command::OpenSession { client_id, ttl_ms: *ttl_ms, nonce: *nonce };
                if let Some(index) = self.admit(call, Admission::Opens, &command, now, fx) {
                    self.attachments.on_connected(connection);
                    self.calls.add_opening(Proposed { index, call });
                    if let Some(session) = self.table.session_by_nonce(nonce)
                        && session.client_id() == *client_id
                    {
                        // Finding it will count as a keep-alive, so it must not expire before.
                        self.leases.on_return(session.slot());
                    }
                }
            }
            Request::CloseSession { session } => self.on_close(call, *session, now, fx),
            Request::Acquire(acquire) => self.on_acquire(call, acquire, now, fx),
            Request::Cancel { mutation, acquire_id } => {
                let command = Command::Cancel { mutation: *mutation, acquire_id: *acquire_id };
                self.on_mutation(call, mutation, Admission::Frees, &command, now, fx);
            }
            Request::Release { mutation, acquire_id, name, token } => {
                if let Err(error) = Name::parse(name) {
                    return self.refuse(call, Status::Invalid, &format!("name: {error}"), fx);
                }
                let command =
                    Command::Release { mutation: *mutation, acquire_id: *acquire_id, name, token: *token };
                self.on_mutation(call, mutation, Admission::Frees, &command, now, fx);
            }
            Request::CheckToken { name, token, session } => {
                let session = (session.0 != 0).then_some(*session);
                let question = Question::Token { name: Box::from(*name), token: *token, session };
                self.on_read(call, name, question, fx);
            }
            Request::GetLock { name } => {
                self.on_read(call, name, Question::Lock(Box::from(*name)), fx);
            }
            Request::GetSession { session } => {
                self.ask(call, Question::Session(*session), fx);
            }
            Request::SaveSnapshot { snapshot, piece } => self.on_save(call, *snapshot, *piece, now, fx),
        }
    }

    fn receive(&mut self, connection: ConnectionId, correlation: Correlation, asked: u16) -> Call {
        self.arrivals += 1;
        Call { connection, correlation, asked, arrival: self.arrivals }
    }

    /// Answers a frame that is no request of this cell.
    pub(crate) fn on_malformed(
        &mut self,
        connection: ConnectionId,
        head: Head,
        error: Option<DecodeError>,
        fx: &mut Effects,
    ) {
        let call = self.receive(connection, head.correlation, head.kind & !kind::REPLY);
        if call.asked == kind::HELLO {
            // A second one. The answer to a Hello has a layout of its own, which is not for a cell to give.
            return;
        }
        match error {
            Some(error @ (DecodeError::UnknownKind(_) | DecodeError::UnknownLevel(_))) => {
                self.refuse(call, Status::Unsupported, &error.to_string(), fx);
            }
            Some(
                error @ (DecodeError::Truncated(_)
                | DecodeError::Trailing { .. }
                | DecodeError::Invalid(_)
                | DecodeError::TooLarge(_)),
            ) => self.refuse(call, Status::Invalid, &error.to_string(), fx),
            None => {
                let detail =
                    format!("this connection serves cell {}, not cell {}", self.config.cell, head.cell);
                self.refuse(call, Status::WrongCell, &detail, fx);
            }
        }
    }

    fn refuse_follower(&mut self, call: Call, fx: &mut Effects) {
        let status = if self.is_stopping { Status::ShuttingDown } else { Status::NotLeader };
        let (leader, address) = self.leader();
        let refusal = Refusal { leader, leader_address: address, ..Refusal::new(status, "") };
        fx.reply(call.connection, self.config.cell, call.asked, call.correlation, &Reply::Refused(refusal));
    }

    /// Answers a call.
    pub(crate) fn answer(&self, call: Call, reply: &Reply<'_>, fx: &mut Effects) {
        fx.reply(call.connection, self.config.cell, call.asked, call.correlation, reply);
    }

    /// Answers a call with a refusal that needs no more than a word.
    pub(crate) fn refuse(&self, call: Call, status: Status, detail: &str, fx: &mut Effects) {
        self.answer(call, &Reply::Refused(Refusal::new(status, detail)), fx);
    }

    fn overloaded(&self, call: Call, fx: &mut Effects) {
        let refusal = Refusal {
            retry_after_ms: RETRY_AFTER_MS,
            ..Refusal::new(
                Status::Overloaded,
                "more is on its way to a majority, or waits to be applied, than this leader takes",
            )
        };
        self.answer(call, &Reply::Refused(refusal), fx);
    }

    /// Entries on their way to a majority, or about to be applied.
    pub(crate) fn backlog(&self) -> u64 {
        self.raft.last_index().0 - self.table.applied().0
    }

    /// The same without those that the start has found in the log and that are committed: nobody asked for them of late.
    fn new_backlog(&self) -> u64 {
        let found = self.replay_through.min(self.raft.committed());
        self.raft.last_index().0 - self.table.applied().max(found).0
    }

    /// Proposes a command unless the leader is too busy, cut off, or about to go.
    fn admit(
        &mut self,
        call: Call,
        admission: Admission,
        command: &Command<'_>,
        now: Time,
        fx: &mut Effects,
    ) -> Option<LogIndex> {
        // What cannot be is answered without an entry that every replica would have to keep.
        if let Some(objection) = self.table.objection(command) {
            answer_with(self, call, objection, fx);
            return None;
        }
        if self.is_stopping {
            self.refuse(call, Status::ShuttingDown, "this node is stopping; ask another member", fx);
            return None;
        }
        if self.must_save_space(admission, command, now) {
            let refusal = Refusal {
                retry_after_ms: SPACE_RETRY_AFTER_MS,
                ..Refusal::new(Status::NoSpace, "the disks of this cell have no room for anything new")
            };
            self.answer(call, &Reply::Refused(refusal), fx);
            return None;
        }
        if self.raft.is_commit_stalled(now) {
            if mutant::is(Mutant::StallSaysNotExecuted) {
                let _ = self.propose(command, now, fx);
            }
            self.refuse(call, Status::NoQuorum, "nothing has reached a majority for an election timeout", fx);
            return None;
        }
        let is_busy = match admission {
            Admission::Frees => self.new_backlog() >= BACKLOG_MAX * 2,
            Admission::Takes => self.backlog() >= BACKLOG_MAX,
            Admission::Opens => self.backlog() >= BACKLOG_MAX / 2,
        };
        if is_busy {
            self.overloaded(call, fx);
            return None;
        }
        let index = self.propose(command, now, fx);
        if index.is_none() {
            self.refuse(call, Status::NoQuorum, "leadership is moving to another member", fx);
        }
        index
    }

    /// Whether a command adds something for which there is no room: what is left is kept for what frees something, and for
    /// the leader's own entries. What is asked for again, and was done, adds nothing.
    fn must_save_space(&self, admission: Admission, command: &Command<'_>, now: Time) -> bool {
        if self.raft.has_space(now) {
            return false;
        }
        let frees = admission == Admission::Frees && !mutant::is(Mutant::ReleaseRefusedForSpace);
        let is_done = if let Command::OpenSession { nonce, .. } = command {
            self.table.session_by_nonce(nonce).is_some()
        } else {
            self.table.replay(command).is_some()
        };
        !frees && !is_done
    }

    fn on_acquire(&mut self, call: Call, acquire: &Acquire<'_>, now: Time, fx: &mut Effects) {
        if let Some(error) = acquire.names.iter().find_map(|name| Name::parse(name).err()) {
            return self.refuse(call, Status::Invalid, &format!("name: {error}"), fx);
        }
        if acquire.wait_ms > WAIT_MS_MAX {
            return self.refuse(call, Status::Invalid, "wait_ms: at most a day", fx);
        }
        if acquire.lock_delay_ms > LOCK_DELAY_MS_MAX {
            return self.refuse(call, Status::Invalid, "lock_delay_ms: at most a minute", fx);
        }
        self.on_mutation(call, &acquire.mutation, Admission::Takes, &Command::Acquire(*acquire), now, fx);
    }

    fn on_mutation(
        &mut self,
        call: Call,
        mutation: &Mutation<'_>,
        admission: Admission,
        command: &Command<'_>,
        now: Time,
        fx: &mut Effects,
    ) {
        if self.attached(mutation.session, call.connection).is_none() {
            return self.refuse_unattached(call, fx);
        }
        let Some(index) = self.admit(call, admission, command, now, fx) else { return };
        let (session, request_id) = (mutation.session, mutation.request_id);
        if let Some(former) = self.calls.add_mutation(session, request_id, Proposed { index, call }) {
            let detail = "sent again under another number, which will be answered";
            self.refuse(former, Status::OutcomeUnknown, detail, fx);
        }
    }

    /// The slot of a live session that is attached to this connection.
    pub(crate) fn attached(&self, session: SessionId, connection: ConnectionId) -> Option<SessionSlot> {
        let slot = self.table.session(session).ok()?.slot();
        self.attachments.is_attached(session, slot, connection).then_some(slot)
    }

    fn refuse_unattached(&self, call: Call, fx: &mut Effects) {
        self.refuse(call, Status::NotAttached, "the session is not attached to this connection", fx);
    }

    fn on_close(&mut self, call: Call, session: SessionId, now: Time, fx: &mut Effects) {
        if self.table.session(session).is_err() {
            return self.ask(call, Question::Gone(session), fx);
        }
        let Some(slot) = self.attached(session, call.connection) else {
            return self.refuse_unattached(call, fx);
        };
        if let Some(index) = self.calls.closing(session) {
            return self.ask_after(index, call, Question::Gone(session), fx);
        }
        let sessions = [session];
        let command = Command::EndSessions { reason: EndReason::Closed, sessions: Rows::Slice(&sessions) };
        if let Some(index) = self.admit(call, Admission::Frees, &command, now, fx) {
            self.leases.doom(slot);
            self.calls.add_closing(session, Proposed { index, call });
        }
    }

    fn on_read(&mut self, call: Call, name: &str, question: Question, fx: &mut Effects) {
        match Name::parse(name) {
            Ok(_) => self.ask(call, question, fx),
            Err(error) => self.refuse(call, Status::Invalid, &format!("name: {error}"), fx),
        }
    }

    pub(crate) fn ask(&mut self, call: Call, question: Question, fx: &mut Effects) {
        if let Some(round) = self.admit_question(call, self.questions.reads_len(), fx) {
            let round = if mutant::is(Mutant::ReadWithoutRound) { RoundId(0) } else { round };
            self.questions.ask(round, call, question);
        }
    }

    fn ask_after(&mut self, after: LogIndex, call: Call, question: Question, fx: &mut Effects) {
        if let Some(round) = self.admit_question(call, self.questions.settling_len(), fx) {
            self.questions.ask_after(round, after, call, question);
        }
    }

    /// The round that answers a question, unless too many like it wait.
    pub(super) fn admit_question(&mut self, call: Call, waiting: usize, fx: &mut Effects) -> Option<RoundId> {
        if waiting >= QUESTIONS_MAX {
            self.overloaded(call, fx);
            return None;
        }
        let round = self.raft.ask_round(Urgency::Now);
        if round.is_none() {
            self.refuse_follower(call, fx);
        }
        round
    }

    fn on_keep_alive(&mut self, call: Call, sessions: &Rows<'_, SessionId>, fx: &mut Effects) {
        let Some(round) = self.raft.ask_round(Urgency::Paced) else {
            return self.refuse_follower(call, fx);
        };
        let mut count = 0;
        for session in sessions.iter() {
            let is_named = match self.attached(session, call.connection) {
                Some(slot) => self.leases.on_beat(slot),
                // There may be any number of those; over the bound they get no row.
                None => self.questions.beating_len() < STRANGERS_MAX,
            };
            if is_named {
                self.questions.add_beating(session);
                count += 1;
            }
        }
        // A beat that comes first for a session is never refused, and there are no more of those than sessions.
        if count == 0 && self.questions.beats_len() >= QUESTIONS_MAX {
            return self.overloaded(call, fx);
        }
        let round = if mutant::is(Mutant::KeepAliveWithoutRound) { RoundId(0) } else { round };
        self.questions.beat(round, call, count);
    }

    fn on_attach(&mut self, call: Call, proofs: &Rows<'_, SessionProof>, now: Time, fx: &mut Effects) {
        let waiting = self.questions.settling_len();
        let Some(round) = self.admit_question(call, waiting, fx) else { return };
        self.attachments.on_connected(call.connection);
        let (mut attaching, mut silent) = (Vec::new(), Vec::new());
        for proof in proofs.iter() {
            if let Ok(session) = self.table.session(proof.session)
                && session.is_opened_by(&proof.nonce)
            {
                let (slot, silence_ms) = (session.slot(), session.silence_ms());
                self.attach(proof.session, slot, call, fx);
                attaching.push(slot);
                if self.leases.is_silent(slot, silence_ms, self.table.applied()) {
                    silent.push(proof.session);
                }
            }
        }
        // Before the blank entry nobody's time has begun anew, and nothing that was heard may shorten it.
        if self.tenure.is_serving() {
            self.log_return(&silent, now, fx);
        }
        // However long the disks take: none of them ends while this waits for its answer.
        for slot in attaching {
            self.leases.on_return(slot);
        }
        // The return is waited for; and what an earlier connection has sent may be on its way still, and uses up request ids.
        let after = self.raft.last_index();
        self.questions.ask_after(round, after, call, Question::Attach(proofs.iter().collect()));
    }

    /// Ties a session to the connection of a call. What it had outstanding on another one is answered by the
    /// connection that it sends it again on.
    pub(crate) fn attach(&mut self, session: SessionId, slot: SessionSlot, call: Call, fx: &mut Effects) {
        if !self.attachments.attach(session, slot, call) {
            return;
        }
        self.leases.forget_beat(slot);
        for former in self.calls.take_session(session) {
            let detail = "the session is attached elsewhere; ask there with the same request id";
            self.refuse(former, Status::OutcomeUnknown, detail, fx);
        }
    }
}
