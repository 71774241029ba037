//! Marks: proof that a search has been where the difficult cases are.
//!
//! Invariant: a mark is set by what anybody could see from outside (the committed entries, what they did, what a
//! process reports), so the real parts know nothing of it. A search of [`SEARCH_RUNS_MIN`] runs or more that misses one
//! has failed: whatever it says about rules, it has not tried them. Deliberately absent: how often is often enough.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use lockstep_core::table::{Answer, Outcome};
use lockstep_wire::entry::Command;
use lockstep_wire::reply::EndReason;
use lockstep_wire::{RequestId, SessionId, Term};

/// Runs from which on a search must have set every mark.
pub const SEARCH_RUNS_MIN: u64 = 600;

macro_rules! marks {
    ($($(#[doc = $doc:literal])+ $name:ident => $words:literal,)+) => {
        /// Something rare that has happened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mark {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Mark {
            /// All of them.
            pub const ALL: &'static [Mark] = &[$(Mark::$name,)+];

            /// What has happened.
            pub fn words(self) -> &'static str {
                match self {
                    $(Mark::$name => $words,)+
                }
            }
        }
    };
}

marks! {
    /// Raft: a follower's entries gave way to another leader's.
    SuffixTruncated => "a conflicting suffix was truncated",
    /// Raft: an entry of an older term was committed by what a newer leader did.
    OlderTermCommitted => "an entry of an older term was committed in a newer one",
    /// Raft: a leader lost its office while its process went on.
    LeaderDeposed => "a leader was deposed",
    /// Raft: an old leader did not know yet that there was a new one.
    TwoLeaders => "two nodes led a cell at once",
    /// Raft: a start has read term and vote of an earlier life.
    HardStateRead => "a start read back what its node had promised",
    /// Raft: a leader that stops has handed over before its end.
    OfficeHandedOver => "a leader that stopped handed its office over",
    /// Raft: a leader has handed over because an operator asked for it.
    TransferSucceeded => "a leader that was asked to hand over did",
    /// Raft: a hand-over that an operator asked for did not come about, and was given up.
    TransferAborted => "a leader gave a hand-over up",
    /// Raft: a leader has handed over because another member should lead.
    GaveWay => "a leader gave way to the member that should lead",
    /// Raft: a follower needed entries that its leader had to read from disk.
    EntriesReadBack => "entries were read back from disk for a follower",
    /// Log: a start has cut a torn batch.
    TornBatchCut => "a start cut a torn batch",
    /// Log: a start has found more than one segment.
    SegmentsRotated => "a log had several segments at a start",
    /// Log: a start has found the first segment gone.
    SegmentsRecycled => "a log had recycled its first segments at a start",
    /// Snapshots: a replica's own counts.
    SnapshotTaken => "a snapshot was taken",
    /// Snapshots: other inputs came between the slices of a piece.
    SnapshotOvertaken => "entries were applied between the slices of a piece of a snapshot",
    /// Snapshots: a disk had no room for one.
    SnapshotWithoutRoom => "a full disk had no room for a snapshot",
    /// Snapshots: a start has loaded one.
    StartedFromSnapshot => "a start went on from a snapshot",
    /// Snapshots: a start has passed over one that was rotten, to an older one, to the whole log or to its leader's.
    RottenSnapshotMet => "a start went on without a rotten snapshot",
    /// Snapshots: a follower has taken its leader's.
    SnapshotInstalled => "a leader's snapshot was installed",
    /// Log: a start was refused, because a batch was not whole.
    RotRefused => "a start over a rotten log was refused",
    /// Log: the disk failed an operation, and the log stopped.
    DiskFailed => "a disk's error stopped a log",
    /// Log: appends waited for a segment that a full disk had no room for.
    SpaceWaitedFor => "appends waited for room on a full disk",
    /// Log: a client was refused because there was no room.
    NoSpaceTold => "a client was told that there was no space",
    /// Log: an acquire was granted while one member's disk was full.
    GrantedBesideFullDisk => "a cell with one full disk went on granting",
    /// Log: a start has found its disk full.
    StartedFull => "a start found its disk full",
    /// Restore: a cluster has begun anew from a backup.
    CellRestored => "a cell was restored from a backup",
    /// Restore: the quiet time of a restored cell has passed, and somebody was granted something.
    GrantedAfterQuiet => "a restored cell granted again after its quiet time",
    /// Birth: a member has met one that was formatted again.
    MemberReplaced => "a member that was formatted again was refused",
    /// Birth: a member was formatted again before its cell was born.
    BirthBroken => "a cell could not be born any more",
    /// Birth: a node that is to join was there before.
    JoinerBeforeBirth => "a node waited to join before a cell was born",
    /// Members: a node was added that gets the log and has no vote.
    LearnerAdded => "a learner was added",
    /// Members: a node was added under a higher id than the next one.
    IdLeftOut => "an id was left out",
    /// Members: a node whose id was left out has heard of it.
    LeftOutNodeEnded => "a node whose id was left out was told and ended",
    /// Members: a learner got its vote.
    LearnerPromoted => "a learner was promoted",
    /// Members: a voter was removed.
    VoterRemoved => "a voter was removed",
    /// Members: a node that was removed has heard of it.
    RemovedNodeEnded => "a removed node was told and ended",
    /// Members: a node that was down or harmed was removed when another one had its vote.
    DeadNodeReplaced => "a dead node was replaced by a new one",
    /// Members: a log lost a list that was not committed.
    ChangeTakenBack => "a change of the members was taken back with its entry",
    /// Members: a leader's snapshot had a newer list than the log that it replaced.
    InstallBroughtList => "an installed snapshot brought a newer list of members",
    /// Members: a change was refused because too few voters were heard.
    ChangeLacksMajority => "a change of the members was refused for want of a majority",
    /// Network: an end gave a connection up, and the other one did not know.
    HalfOpen => "a connection was half open",
    /// The end: progress was made without a minority.
    MinorityMissed => "a run came to rest without a minority",
    /// Sessions: an open found the session that an earlier try had opened.
    OpenFoundItsSession => "an open that was sent again found its session",
    /// Sessions: one entry has ended several.
    SeveralSessionsEnded => "one entry ended several sessions",
    /// Sessions: a cancel was behind the end of its session.
    CancelMetTheEnd => "a cancel came behind the end of its session",
    /// Sessions: an acquire was behind the end of its session.
    AcquireMetTheEnd => "an acquire came behind the end of its session",
    /// Sessions: a release was behind the end of its session.
    ReleaseMetTheEnd => "a release came behind the end of its session",
    /// Sessions: what ended under one leader was reaped by another.
    ReapedByAnotherLeader => "sessions were reaped in another term than they ended in",
    /// Sessions: an entry of reaping did not finish.
    ReapedInSlices => "a slice of reaping left something for the next",
    /// Sessions: an expired session's lock went to whoever waited.
    PromotedByExpiry => "an expiry promoted a waiter",
    /// Sessions: a leader has logged that it has not heard of one.
    SilenceLogged => "a session's silence was logged",
    /// Sessions: a leader has added to the silence that an earlier one had logged.
    SilenceContinued => "silence that one leader had logged went on under another",
    /// Sessions: one whose silence was logged has been heard again.
    SilentReturned => "a silent session returned",
    /// Sessions: one whose end or silence was on its way has asked to be confirmed.
    ConfirmationHeldOff => "a session was not confirmed, because its end or its silence was on its way",
    /// Waits: a timeout has promoted somebody behind.
    PromotedByTimeout => "a timeout promoted a waiter",
    /// Waits: a cancel has promoted somebody behind.
    PromotedByCancel => "a cancel promoted a waiter",
    /// Waits: a timer's entry came behind the grant or the cancel.
    TimerWasLate => "a wait's timer came too late",
    /// Waits: several shared requests were granted at once.
    SharedRunPromoted => "a run of shared requests was promoted together",
    /// Requests: a cancel has met a hold.
    CancelMetTheGrant => "a cancel ended a hold",
    /// Requests: a cancel has come before its acquire.
    CancelMetNothing => "a cancel found no acquire",
    /// Requests: an acquire came when its number was used up.
    AcquireWasStale => "an acquire was refused as stale",
    /// Requests: an acquire was committed again when its outcome was known.
    AcquireCameAgain => "an acquire that had its outcome came again",
    /// Requests: a release was committed again when its outcome was known.
    ReleaseCameAgain => "a release that had its outcome came again",
    /// Requests: a granted acquire was sent again behind the end of its hold.
    ReplayMetTheEnd => "an acquire that was sent again found its hold ended",
    /// Requests: a wait was entered again by a request that was sent twice.
    WaitSentAgain => "an acquire that waited was sent again",
    /// Requests: a request over a limit was refused in apply.
    LimitMet => "a request met a limit",
    /// Requests: an acquire has met its owner's own.
    AlreadyHeld => "an owner asked for what it held or waited for",
    /// Clients: the deadline passed and the cell confirmed the session after all.
    JeopardyPassed => "a session in jeopardy was safe again",
    /// Clients: nothing was known for so long that the client gave its session up.
    SessionGivenUp => "a client gave a session up",
    /// Clients: a grant came when its hold had ended.
    GrantWasLost => "a client heard that its grant was lost",
}

/// How often each mark was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks([u64; Mark::ALL.len()]);

impl Default for Marks {
    fn default() -> Marks {
        Marks([0; Mark::ALL.len()])
    }
}

impl Marks {
    /// It has happened.
    pub fn set(&mut self, mark: Mark) {
        self.0[mark as usize] += 1;
    }

    /// How often it has happened.
    pub fn count(&self, mark: Mark) -> u64 {
        self.0[mark as usize]
    }

    /// Adds what others have seen.
    pub fn add(&mut self, others: &Marks) {
        for (count, more) in self.0.iter_mut().zip(others.0) {
            *count += more;
        }
    }

    /// How many marks were set at least once.
    pub fn reached(&self) -> usize {
        self.0.iter().filter(|count| **count > 0).count()
    }

    /// Those that were not.
    pub fn missed(&self) -> impl Iterator<Item = Mark> {
        Mark::ALL.iter().copied().filter(|mark| self.0[*mark as usize] == 0)
    }
}

impl fmt::Display for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for mark in Mark::ALL {
            writeln!(f, "{:>12}  {}", self.0[*mark as usize], mark.words())?;
        }
        Ok(())
    }
}

/// Watches the committed entries of one cell for marks.
#[derive(Debug, Default)]
pub struct Lookout {
    marks: Marks,
    waiting: BTreeSet<(SessionId, RequestId)>,
    /// The term of the entry that left something to be reaped; none when nothing is left.
    unreaped: Option<Term>,
    /// The terms in which silence of sessions was last logged.
    silent: BTreeMap<SessionId, Term>,
    /// Quiet has ended, and nothing was granted since.
    is_after_quiet: bool,
}

impl Lookout {
    /// What was seen.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// The cell was restored from a backup.
    pub fn on_restored(&mut self) {
        *self = Lookout { marks: self.marks, ..Lookout::default() };
    }

    /// An entry of `term` has been committed; leaders up to `newest` have been elected.
    pub fn on_entry(&mut self, term: Term, newest: Term, command: &Command<'_>, outcomes: &[Outcome]) {
        if term < newest {
            self.marks.set(Mark::OlderTermCommitted);
        }
        let grants = count_grants(outcomes);
        if grants > 0 && std::mem::take(&mut self.is_after_quiet) {
            self.marks.set(Mark::GrantedAfterQuiet);
        }
        for outcome in outcomes {
            if let Outcome::WaitEnded { session, acquire_id } = outcome {
                self.waiting.remove(&(*session, *acquire_id));
            }
        }
        match command {
            Command::Blank | Command::Members(_) => {}
            Command::OpenSession { .. } => self.on_open(outcomes),
            Command::Acquire(acquire) => {
                let (session, request_id) = (acquire.mutation.session, acquire.mutation.request_id);
                if let Some(answer) = answer_to(outcomes, session, request_id) {
                    self.on_acquire((session, request_id), &answer);
                }
            }
            Command::Cancel { mutation, acquire_id } => {
                let answer = answer_to(outcomes, mutation.session, mutation.request_id);
                self.on_cancel(mutation.session, *acquire_id, answer, outcomes);
            }
            Command::Release { mutation, .. } => {
                let answer = answer_to(outcomes, mutation.session, mutation.request_id);
                if answer == Some(Answer::SessionExpired) {
                    self.marks.set(Mark::ReleaseMetTheEnd);
                }
                self.set_if(grants > 1, Mark::SharedRunPromoted);
            }
            Command::CancelWait { .. } => {
                self.set_if(outcomes.is_empty(), Mark::TimerWasLate);
                self.set_if(grants > 0, Mark::PromotedByTimeout);
            }
            Command::EndSessions { reason, .. } => self.on_end(term, *reason, outcomes),
            Command::Reap => self.on_reap(term, outcomes),
            Command::SessionsSilent { silences } => {
                for silence in silences.iter() {
                    self.marks.set(Mark::SilenceLogged);
                    let before = self.silent.insert(silence.session, term);
                    self.set_if(before.is_some_and(|before| before != term), Mark::SilenceContinued);
                }
            }
            Command::SessionsReturned { sessions } => {
                for session in sessions.iter() {
                    let was_silent = self.silent.remove(&session).is_some();
                    self.set_if(was_silent, Mark::SilentReturned);
                }
            }
            Command::EndQuiet => self.is_after_quiet = true,
        }
    }

    /// A request that was committed has its outcome already.
    pub fn on_settled_again(&mut self, command: &Command<'_>) {
        match command {
            Command::Acquire(_) => self.marks.set(Mark::AcquireCameAgain),
            Command::Release { .. } => self.marks.set(Mark::ReleaseCameAgain),
            _ => {}
        }
    }

    fn set_if(&mut self, has_happened: bool, mark: Mark) {
        if has_happened {
            self.marks.set(mark);
        }
    }

    fn on_open(&mut self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            match outcome {
                Outcome::Opened { is_new: false, .. } => self.marks.set(Mark::OpenFoundItsSession),
                Outcome::OpenRefused { answer: Answer::Limit(_) } => self.marks.set(Mark::LimitMet),
                _ => {}
            }
        }
    }

    fn on_acquire(&mut self, wait: (SessionId, RequestId), answer: &Answer) {
        match answer {
            Answer::SessionExpired => self.marks.set(Mark::AcquireMetTheEnd),
            Answer::StaleRequest => self.marks.set(Mark::AcquireWasStale),
            Answer::AlreadyHeld { .. } => self.marks.set(Mark::AlreadyHeld),
            Answer::Lost { .. } => self.marks.set(Mark::ReplayMetTheEnd),
            Answer::Limit(_) => self.marks.set(Mark::LimitMet),
            Answer::Queued { .. } => {
                let is_new = self.waiting.insert(wait);
                self.set_if(!is_new, Mark::WaitSentAgain);
            }
            _ => {}
        }
    }

    fn on_cancel(
        &mut self,
        session: SessionId,
        acquire_id: RequestId,
        answer: Option<Answer>,
        outcomes: &[Outcome],
    ) {
        if answer == Some(Answer::SessionExpired) {
            return self.marks.set(Mark::CancelMetTheEnd);
        }
        let has_waited = answer_to(outcomes, session, acquire_id) == Some(Answer::Cancelled);
        let has_held = outcomes
            .iter()
            .any(|outcome| matches!(outcome, Outcome::HoldEnded { reason: EndReason::Cancelled, .. }));
        self.set_if(has_held, Mark::CancelMetTheGrant);
        self.set_if(answer == Some(Answer::Done) && outcomes.len() == 1, Mark::CancelMetNothing);
        self.set_if(has_waited && count_grants(outcomes) > 0, Mark::PromotedByCancel);
    }

    fn on_end(&mut self, term: Term, reason: EndReason, outcomes: &[Outcome]) {
        let is_end = |outcome: &&Outcome| matches!(outcome, Outcome::SessionEnded { .. });
        let ended = outcomes.iter().filter(is_end).count();
        self.set_if(ended > 1, Mark::SeveralSessionsEnded);
        self.set_if(reason == EndReason::Expired && count_grants(outcomes) > 0, Mark::PromotedByExpiry);
        self.unreaped = is_unfinished(outcomes).then_some(term);
    }

    fn on_reap(&mut self, term: Term, outcomes: &[Outcome]) {
        self.set_if(self.unreaped.is_some_and(|left| left != term), Mark::ReapedByAnotherLeader);
        self.set_if(is_unfinished(outcomes), Mark::ReapedInSlices);
        self.unreaped = is_unfinished(outcomes).then_some(term);
    }
}

fn answer_to(outcomes: &[Outcome], asker: SessionId, request: RequestId) -> Option<Answer> {
    outcomes.iter().find_map(|outcome| match outcome {
        Outcome::Reply { session, request_id, answer } if (*session, *request_id) == (asker, request) => {
            Some(*answer)
        }
        _ => None,
    })
}

fn count_grants(outcomes: &[Outcome]) -> usize {
    let grants = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Outcome::Reply { answer: Answer::Granted(_), .. }));
    grants.count()
}

fn is_unfinished(outcomes: &[Outcome]) -> bool {
    outcomes.contains(&Outcome::ReapNeeded)
}

#[cfg(test)]
mod tests {
    use lockstep_wire::reply::Grant;
    use lockstep_wire::{FencingToken, Rows};

    use super::*;

    const WAITER: SessionId = SessionId(7);

    fn granted(request_id: u64) -> Outcome {
        let token = FencingToken(9);
        let grant = Grant { token, fence: token, slot: 0, hold_left_ms: 0, holders: 1 };
        let answer = Answer::Granted(grant);
        Outcome::Reply { session: WAITER, request_id: RequestId(request_id), answer }
    }

    #[test]
    fn a_timeout_that_promotes_is_told_from_one_that_comes_too_late() {
        let timeout = Command::CancelWait { session: SessionId(5), acquire_id: RequestId(1) };
        let mut lookout = Lookout::default();
        lookout.on_entry(Term(1), Term(1), &timeout, &[]);
        assert_eq!(lookout.marks().count(Mark::TimerWasLate), 1);
        assert_eq!(lookout.marks().count(Mark::PromotedByTimeout), 0);
        lookout.on_entry(Term(1), Term(1), &timeout, &[granted(1)]);
        assert_eq!(lookout.marks().count(Mark::PromotedByTimeout), 1);
        assert_eq!(lookout.marks().count(Mark::OlderTermCommitted), 0);
        assert!(lookout.marks().missed().any(|mark| mark == Mark::OlderTermCommitted));
    }

    #[test]
    fn a_reaping_that_goes_on_under_another_leader_is_seen() {
        let ended =
            Command::EndSessions { reason: EndReason::Expired, sessions: Rows::Slice(&[SessionId(5)]) };
        for (term, expected) in [(1, 0), (2, 1)] {
            let mut lookout = Lookout::default();
            lookout.on_entry(Term(1), Term(1), &ended, &[Outcome::ReapNeeded]);
            lookout.on_entry(Term(term), Term(term), &Command::Reap, &[]);
            assert_eq!(lookout.marks().count(Mark::ReapedByAnotherLeader), expected);
        }
    }
}
