//! What is answered under a read round: reads, keep-alives, attachments, and every word about a session
//! (ARCHITECTURE section 4.2).
//!
//! Invariant: an answer is given only by a round that began after the question came, from a table that has
//! applied all that was committed when the round began; and a keep-alive waits for no other entry, not
//! even behind a question that does. Deliberately absent: the round itself.

use std::collections::VecDeque;

use lockstep_wire::request::SessionProof;
use lockstep_wire::{FencingToken, LogIndex, RoundId, SessionId};

use super::calls::Call;

/// What was asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Question {
    /// Do these sessions live? Their ids are the next `count` of [`Questions::take_beating`].
    KeepAlive { count: usize },
    /// Attach these.
    Attach(Box<[SessionProof]>),
    /// Who holds this lock?
    Lock(Box<str>),
    /// Is this token current?
    Token { name: Box<str>, token: FencingToken, session: Option<SessionId> },
    /// What does this session hold?
    Session(SessionId),
    /// The members are as this call wishes; are they, for certain?
    Members,
    /// The session of this call is not live here, or its end is on its way; what became of it?
    Gone(SessionId),
    /// Does this replica lead, so that its snapshot is the cell's?
    Snapshot,
}

#[derive(Debug)]
struct Asked {
    round: RoundId,
    /// The table must have applied this entry too.
    after: LogIndex,
    call: Call,
    question: Question,
}

/// The questions that wait for a round: in three lanes, each in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    /// Keep-alives.
    beats: VecDeque<Asked>,
    /// Whatever a round alone answers.
    reads: VecDeque<Asked>,
    /// Whatever waits for an entry, too. The disks may be long about it.
    settling: VecDeque<Asked>,
    /// The ids of the keep-alives in `beats`, one after the other.
    beating: VecDeque<SessionId>,
    /// Rounds that were confirmed, and how far the log was known to be committed by then.
    confirmations: VecDeque<(RoundId, LogIndex)>,
    /// The newest round of which the table has all that was committed by then.
    confirmed: RoundId,
}

impl Questions {
    /// How many keep-alives wait.
    pub(crate) fn beats_len(&self) -> usize {
        self.beats.len()
    }

    /// How many sessions' keep-alives wait.
    pub(crate) fn beating_len(&self) -> usize {
        self.beating.len()
    }

    /// How many questions wait for a round alone.
    pub(crate) fn reads_len(&self) -> usize {
        self.reads.len()
    }

    /// How many questions wait for an entry, too.
    pub(crate) fn settling_len(&self) -> usize {
        self.settling.len()
    }

    /// Adds a question that `round` answers.
    pub(crate) fn ask(&mut self, round: RoundId, call: Call, question: Question) {
        self.reads.push_back(Asked { round, after: LogIndex(0), call, question });
    }

    /// Adds a question that `round` answers once `after`, which only grows, has been applied.
    pub(crate) fn ask_after(&mut self, round: RoundId, after: LogIndex, call: Call, question: Question) {
        self.settling.push_back(Asked { round, after, call, question });
    }

    /// Adds a keep-alive of the sessions that were last named.
    pub(crate) fn beat(&mut self, round: RoundId, call: Call, count: usize) {
        let question = Question::KeepAlive { count };
        self.beats.push_back(Asked { round, after: LogIndex(0), call, question });
    }

    /// Names a session for the keep-alive that is added next.
    pub(crate) fn add_beating(&mut self, session: SessionId) {
        self.beating.push_back(session);
    }

    /// The next id of the keep-alive that was taken last.
    pub(crate) fn take_beating(&mut self) -> SessionId {
        self.beating.pop_front().expect("a keep-alive brings its ids")
    }

    /// Notes that a round, and all before it, were confirmed when the log was known to be committed through this entry.
    pub(crate) fn on_confirmed(&mut self, round: RoundId, committed: LogIndex) {
        self.confirmations.push_back((round, committed));
    }

    /// The next question that may be answered now; keep-alives first.
    pub(crate) fn poll_answerable(&mut self, applied: LogIndex) -> Option<(Call, Question)> {
        while let Some((round, committed)) = self.confirmations.front().copied() {
            if committed > applied {
                break;
            }
            self.confirmed = self.confirmed.max(round);
            self.confirmations.pop_front();
        }
        let confirmed = self.confirmed;
        [&mut self.beats, &mut self.reads, &mut self.settling].into_iter().find_map(|lane| {
            let front = lane.front()?;
            if front.round > confirmed || front.after > applied {
                return None;
            }
            lane.pop_front().map(|asked| (asked.call, asked.question))
        })
    }

    /// Takes every call out, unanswered; a new tenure's rounds are counted anew.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Call> + use<> {
        self.beating.clear();
        self.confirmations.clear();
        self.confirmed = RoundId(0);
        let lanes = [&mut self.beats, &mut self.reads, &mut self.settling].map(std::mem::take);
        lanes.into_iter().flatten().map(|asked| asked.call)
    }
}
