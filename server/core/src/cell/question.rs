//! What is answered under a read round: reads, keep-alives, attachments, and every word about a session
//! (DESIGN section 4.2).
//!
//! Invariant: an answer is given only by a round that began after the question came, from a table that has
//! applied all that was committed when the round began. Deliberately absent: the round itself.

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
    /// The session of this call is not live here; what became of it?
    Gone(SessionId),
}

#[derive(Debug)]
struct Asked {
    round: RoundId,
    /// The table must have applied this entry too.
    after: LogIndex,
    call: Call,
    question: Question,
}

/// The questions that wait for a round, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    asked: VecDeque<Asked>,
    /// The ids of the keep-alives in `asked`, one after the other.
    beating: VecDeque<SessionId>,
    confirmed: RoundId,
}

impl Questions {
    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.asked.len()
    }

    /// Adds a question that `round` answers once `after` has been applied.
    pub(crate) fn ask(&mut self, round: RoundId, after: LogIndex, call: Call, question: Question) {
        self.asked.push_back(Asked { round, after, call, question });
    }

    /// Adds an id to the keep-alive that is asked next.
    pub(crate) fn add_beating(&mut self, session: SessionId) {
        self.beating.push_back(session);
    }

    /// The next id of the keep-alive that was taken last.
    pub(crate) fn take_beating(&mut self) -> SessionId {
        self.beating.pop_front().expect("a keep-alive brings its ids")
    }

    /// Notes that a round, and all before it, were confirmed.
    pub(crate) fn on_confirmed(&mut self, round: RoundId) {
        self.confirmed = self.confirmed.max(round);
    }

    /// The next question that may be answered now.
    pub(crate) fn poll_answerable(&mut self, applied: LogIndex) -> Option<(Call, Question)> {
        let front = self.asked.front()?;
        if front.round > self.confirmed || front.after > applied {
            return None;
        }
        self.asked.pop_front().map(|asked| (asked.call, asked.question))
    }

    /// Takes every call out, unanswered; a new tenure's rounds are counted anew.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Call> + use<> {
        self.beating.clear();
        self.confirmed = RoundId(0);
        std::mem::take(&mut self.asked).into_iter().map(|asked| asked.call)
    }
}
