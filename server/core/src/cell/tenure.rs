//! What a leader does from taking office to losing it: leases, timers, expiry, reaping, the end of quiet.
//!
//! Invariants: nothing is armed before the leader's blank entry has been applied; taking office scans
//! nothing, it walks on a little in every turn; no session is ended, nor called silent, before the input that was
//! waiting has been drained (ARCHITECTURE section 4.4).

use lockstep_wire::entry::{Command, Silence};
use lockstep_wire::limit::{SESSIONS_PER_BATCH_MAX, TTL_MS_MAX};
use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::reply::{EndReason, Event, Refusal, Reply};
use lockstep_wire::{LogIndex, NodeId, Rows, Status};

use super::digest::Verdict;
use super::request::BACKLOG_MAX;
use super::{Cell, disagreement};
use crate::effect::{DrainId, Effect, Effects, Lane, Report};
use crate::raft::RaftEvent;
use crate::time::{Span, Time};
use lockstep_wire::peer::PeerMessage;

/// Slots of sessions, and of waits, that a new leader arms in one turn.
const ARM_PER_TURN: u32 = 1_024;
/// Sessions in one entry that ends them.
const EXPIRE_PER_ENTRY: usize = 256;
/// Waits that are ended in one turn.
const CANCEL_PER_TURN: usize = 256;
/// Between two turns in which a new leader arms sessions.
const ARM_EVERY: Span = Span::from_ms(1);
/// The longest time between two steps, well below what counts as a stall.
const STEP_EVERY: Span = Span::from_ms(50);

/// How far this replica's tenure has come.
#[derive(Debug, Default)]
pub(crate) struct Tenure {
    is_serving: bool,
    /// Where the walk over the sessions goes on; none when it is over.
    sessions_from: Option<u32>,
    /// Where the walk over the waits goes on; none when it is over.
    waits_from: Option<u32>,
    /// The drain that must be over before sessions are ended.
    draining: Option<DrainId>,
    /// The entry that ends sessions, or calls them silent, and is not applied yet.
    ending: Option<LogIndex>,
    /// The entry that reaps and is not applied yet.
    reaping: Option<LogIndex>,
    /// Nobody can believe any more in what he held before the cell was restored.
    quiet_ends_at: Time,
    /// The entry that ends quiet and is not applied yet.
    ending_quiet: Option<LogIndex>,
    /// A proposal of its own was refused: none is tried before this.
    held_back_until: Time,
}

impl Tenure {
    /// Whether the leader's blank entry has been applied.
    pub(crate) fn is_serving(&self) -> bool {
        self.is_serving
    }

    /// Notes that an entry has been applied: what waited for it may go on.
    pub(crate) fn on_applied(&mut self, index: LogIndex) {
        self.ending = self.ending.filter(|ending| *ending != index);
        self.reaping = self.reaping.filter(|reaping| *reaping != index);
        self.ending_quiet = self.ending_quiet.filter(|ending| *ending != index);
    }

    /// Whether sessions or waits are left to be armed.
    pub(crate) fn is_arming(&self) -> bool {
        self.sessions_from.is_some() || self.waits_from.is_some()
    }
}

impl Cell {
    /// Takes what Raft says about the office.
    pub(crate) fn on_raft_event(&mut self, event: RaftEvent, now: Time, fx: &mut Effects) {
        match event {
            RaftEvent::Elected { .. } => {
                self.tenure = Tenure::default();
                self.give_up_snapshot(fx);
            }
            RaftEvent::Serving { term } => {
                fx.push(Effect::Report(Report::Leading { term }));
                self.take_office(now, fx);
            }
            RaftEvent::Deposed { term, reason, is_planned } => {
                fx.push(Effect::Report(Report::Deposed { term, reason, is_planned }));
                self.leave_office(fx);
            }
            RaftEvent::LeaderChanged { leader } => {
                if leader != self.config.node {
                    fx.push(Effect::Report(Report::Following { term: self.raft.term(), leader }));
                }
            }
            RaftEvent::RoundConfirmed(round) => {
                self.questions.on_confirmed(round, self.raft.committed());
            }
            RaftEvent::SnapshotWanted => self.take_snapshot(now, fx),
            RaftEvent::SnapshotTaken(snapshot) => {
                self.on_snapshot_marked();
                fx.push(Effect::Report(Report::SnapshotTaken { snapshot }));
                self.follow_saves(now, fx);
            }
            RaftEvent::SnapshotInstalled(snapshot) => {
                fx.push(Effect::Report(Report::SnapshotInstalled { snapshot }));
            }
            RaftEvent::Born => fx.push(Effect::Report(Report::Born)),
            RaftEvent::WaitsToBeAdded => {
                let [client_address, peer_address] = self.own_addresses();
                fx.push(Effect::Report(Report::WaitsToBeAdded { client_address, peer_address }));
            }
            RaftEvent::MembersChanged => fx.push(Effect::PeersChanged),
            RaftEvent::Removed => fx.push(Effect::Removed),
        }
    }

    fn take_office(&mut self, now: Time, fx: &mut Effects) {
        self.leases.take_office();
        self.waits.clear();
        self.digests.clear_reports();
        let waits_from = (!mutant::is(Mutant::WaitForgottenAtFailover)).then_some(0);
        // A whole one, whatever former leaders have waited: they do not say when they began.
        let quiet_ms = if mutant::is(Mutant::RestoreWithoutQuietTime) { 0 } else { TTL_MS_MAX };
        let quiet_ends_at = now + Span::from_ms(u64::from(quiet_ms));
        self.tenure = Tenure {
            is_serving: true,
            sessions_from: Some(0),
            waits_from,
            quiet_ends_at,
            ..Tenure::default()
        };
        if self.table.is_quiet() {
            fx.push(Effect::Report(Report::Quiet { left: quiet_ends_at.since(now) }));
        }
        self.keep_office(now, fx);
    }

    /// For how long a restored cell grants nothing, if this leader stays; 0 when it grants, or somebody else leads.
    pub(crate) fn quiet_left_ms(&self, now: Time) -> u32 {
        let is_counting = self.tenure.is_serving && self.table.is_quiet();
        let left = if is_counting { self.tenure.quiet_ends_at.since(now).ms() } else { 0 };
        u32::try_from(left).unwrap_or(u32::MAX)
    }

    /// Answers whatever is outstanding: it is not this replica's to decide any more.
    fn leave_office(&mut self, fx: &mut Effects) {
        self.tenure = Tenure::default();
        self.leases.forget();
        self.waits.clear();
        let (leader, address) = self.leader();
        let address = address.to_owned();
        let status = match mutant::is(Mutant::DeposedSaysNotExecuted) {
            true => Status::NotLeader,
            false => Status::OutcomeUnknown,
        };
        for call in self.calls.take_all() {
            let detail = "the leader lost its office; ask again with the same request id";
            let refusal = Refusal { leader, leader_address: &address, ..Refusal::new(status, detail) };
            self.answer(call, &Reply::Refused(refusal), fx);
        }
        for call in self.questions.take_all().chain(self.saves.take_all()) {
            let refusal = Refusal { leader, leader_address: &address, ..Refusal::new(Status::NotLeader, "") };
            self.answer(call, &Reply::Refused(refusal), fx);
        }
        self.attachments.clear();
    }

    /// When the office wants a tick at the latest. What waits for an input of its own, or was refused a moment
    /// ago, does not want any: it would be woken in vain.
    pub(crate) fn office_deadline(&self) -> Time {
        let tenure = &self.tenure;
        if !tenure.is_serving {
            return Time::NEVER;
        }
        let stepped = self.leases.stepped();
        let leases = match (tenure.draining.is_some() || tenure.ending.is_some(), self.leases.has_noticed()) {
            (true, _) => Time::NEVER,
            (false, true) => stepped,
            (false, false) => self.leases.deadline(),
        };
        let is_quiet = self.table.is_quiet() && tenure.ending_quiet.is_none();
        let quiet = if is_quiet { tenure.quiet_ends_at } else { Time::NEVER };
        let proposals = self.waits.deadline().min(leases).min(quiet).max(tenure.held_back_until);
        let arming = if tenure.is_arming() { stepped + ARM_EVERY } else { Time::NEVER };
        (stepped + STEP_EVERY).min(proposals).min(arming)
    }

    /// Walks on: arms timers, notices deadlines, cancels waits whose time is over.
    pub(crate) fn keep_office(&mut self, now: Time, fx: &mut Effects) {
        if !self.tenure.is_serving {
            return;
        }
        self.arm_sessions();
        self.arm_waits(now);
        self.follow_saves(now, fx);
        if now < self.tenure.held_back_until {
            return;
        }
        self.cancel_waits(now, fx);
        if self.table.is_quiet() && self.tenure.ending_quiet.is_none() && now >= self.tenure.quiet_ends_at {
            self.tenure.ending_quiet = self.propose_own(&Command::EndQuiet, now, fx);
        }
        if self.table.needs_reaping() && self.tenure.reaping.is_none() {
            self.tenure.reaping = self.propose_own(&Command::Reap, now, fx);
        }
        if self.tenure.draining.is_none() && self.tenure.ending.is_none() && self.leases.notice() {
            if mutant::is(Mutant::ExpireWithoutDrain) {
                self.expire(now, fx);
                self.log_silence(now, fx);
                return;
            }
            let drain = self.drain(fx);
            self.tenure.draining = Some(drain);
        }
    }

    fn cancel_waits(&mut self, now: Time, fx: &mut Effects) {
        for _ in 0..CANCEL_PER_TURN {
            let Some((session, acquire_id)) = self.waits.first_due(now) else { return };
            if self.backlog() >= BACKLOG_MAX {
                self.hold_back(now);
                return;
            }
            if self.propose_own(&Command::CancelWait { session, acquire_id }, now, fx).is_none() {
                return;
            }
            self.waits.stop(session, acquire_id);
        }
    }

    /// Appends an entry that the office wants; when that is refused, nothing is tried for a while.
    fn propose_own(&mut self, command: &Command<'_>, now: Time, fx: &mut Effects) -> Option<LogIndex> {
        let index = self.propose(command, now, fx);
        if index.is_none() {
            self.hold_back(now);
        }
        index
    }

    fn hold_back(&mut self, now: Time) {
        self.tenure.held_back_until = now + self.config.heartbeat;
    }

    fn arm_sessions(&mut self) {
        let Some(from) = self.tenure.sessions_from else { return };
        let leases = &mut self.leases;
        self.tenure.sessions_from = self.table.walk_sessions(from, ARM_PER_TURN, |session| {
            let [ttl, silence] = [session.ttl_ms, session.silence_ms].map(|ms| Span::from_ms(u64::from(ms)));
            leases.arm(session.slot, ttl, silence);
        });
    }

    fn arm_waits(&mut self, now: Time) {
        let Some(from) = self.tenure.waits_from else { return };
        let waits = &mut self.waits;
        self.tenure.waits_from = self.table.walk_waits(from, ARM_PER_TURN, |wait| {
            let deadline = now + Span::from_ms(u64::from(wait.wait_ms));
            waits.start(wait.session, wait.acquire_id, deadline);
        });
    }

    /// The input that was waiting has been given: who is due still has been silent for a whole TTL, and who is silent
    /// still for long enough to tell a successor.
    pub(crate) fn on_drained(&mut self, drain: DrainId, now: Time, fx: &mut Effects) {
        if self.tenure.draining != Some(drain) {
            return;
        }
        self.tenure.draining = None;
        self.expire(now, fx);
        self.log_silence(now, fx);
    }

    fn expire(&mut self, now: Time, fx: &mut Effects) {
        let mut slots = Vec::new();
        let mut ending = Vec::new();
        while ending.len() < EXPIRE_PER_ENTRY
            && let Some(slot) = self.leases.poll_due()
        {
            if let Some(session) = self.table.session_at(slot)
                && !self.leases.is_doomed(slot)
            {
                slots.push(slot);
                ending.push(session.id());
            }
        }
        if ending.is_empty() {
            return;
        }
        let command = Command::EndSessions { reason: EndReason::Expired, sessions: Rows::Slice(&ending) };
        self.tenure.ending = self.propose_own(&command, now, fx);
        for slot in slots {
            match self.tenure.ending {
                Some(_) => self.leases.doom(slot),
                None => self.leases.put_back(slot),
            }
        }
    }

    fn log_silence(&mut self, now: Time, fx: &mut Effects) {
        let mut silent = Vec::new();
        let mut silences = Vec::new();
        while silences.len() < SESSIONS_PER_BATCH_MAX
            && let Some((slot, ms)) = self.leases.poll_silent()
        {
            if let Some(session) = self.table.session_at(slot) {
                silent.push((slot, Span::from_ms(u64::from(session.ttl_ms()))));
                silences.push(Silence { session: session.id(), ms });
            }
        }
        if silences.is_empty() {
            return;
        }
        let command = Command::SessionsSilent { silences: Rows::Slice(&silences) };
        let index = self.propose_own(&command, now, fx);
        self.tenure.ending = index.or(self.tenure.ending);
        for ((slot, ttl), silence) in silent.into_iter().zip(silences) {
            match index {
                Some(index) => self.leases.on_silence(slot, silence.ms, ttl, index),
                None => self.leases.put_back_silent(slot),
            }
        }
    }

    /// Appends an entry; none when this replica has lost its office or is about to leave it.
    pub(crate) fn propose(&mut self, command: &Command<'_>, now: Time, fx: &mut Effects) -> Option<LogIndex> {
        self.raft.propose(now, fx, |out| command.encode(out))
    }

    /// The node is about to stop: clients are told, and leadership goes to another member.
    pub(crate) fn on_stop(&mut self, now: Time, fx: &mut Effects) {
        if self.is_stopping {
            return;
        }
        self.is_stopping = true;
        let connections: Vec<_> = self.attachments.connections().collect();
        for connection in connections {
            let event = Event::ShuttingDown { leader: NodeId(0), leader_address: "" };
            fx.tell(connection, self.config.cell, &event);
        }
        self.raft.on_stop(now, fx);
    }

    /// Notes this replica's digest where digests are compared.
    pub(crate) fn compare_digests(&mut self, index: LogIndex, fx: &mut Effects) {
        let digest = self.table.digest();
        self.digests.note(index, digest);
        if self.raft.is_leader() {
            self.on_digest(self.config.node, index, digest, fx);
        } else if let Some(leader) = self.raft.leader() {
            let message = PeerMessage::Digest { index, digest };
            fx.send(leader, Lane::Control, self.config.cell, &message);
        }
    }

    /// Takes one member's digest, and stops whoever disagrees with a majority.
    pub(crate) fn on_digest(&mut self, from: NodeId, index: LogIndex, digest: u64, fx: &mut Effects) {
        if let Some(own) = self.digests.own(index) {
            // It may have led no more, or not yet, when it applied the entry.
            self.digests.add(self.config.node, index, own);
        }
        match self.digests.on_reported(from, index, digest, self.raft.membership()) {
            None => {}
            Some(Verdict::Disagree { index, digest, members }) => {
                for member in members {
                    let reason = disagreement(self.config.cell, index);
                    fx.push(Effect::Report(Report::Refused { peer: member, reason: reason.clone() }));
                    if member == self.config.node {
                        self.halt(fx, reason);
                    } else {
                        let message = PeerMessage::DigestDisagrees { index, digest };
                        fx.send(member, Lane::Control, self.config.cell, &message);
                    }
                }
            }
            Some(Verdict::NoMajority { index }) => {
                let reason = format!(
                    "after entry {index} of cell {} no digest is that of a majority; the replicas have \
                     diverged: stop writing and keep every data directory for an inquiry",
                    self.config.cell
                );
                fx.push(Effect::Report(Report::Refused { peer: from, reason }));
            }
        }
    }
}
