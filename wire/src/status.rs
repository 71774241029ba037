//! The closed set of status codes, each with one meaning and one retry class (ARCHITECTURE section 3).
//!
//! Invariant: a code says whether the request was executed; nobody has to guess. Deliberately absent:
//! the details that some codes carry (a hint, a delay), which are fields of the reply.

use crate::cursor::{DecodeError, Decoded};

/// What a client may do after a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It was executed (or answered); there is nothing to retry.
    Done,
    /// It was not executed; it may be sent again anywhere.
    Anywhere,
    /// Whether it was executed is not known; it may be sent again with the same request id only.
    SameRequestId,
    /// It was not executed and never will be as it stands.
    Never,
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $code:literal $name:ident $text:literal $retry:ident;)*) => {
        /// The outcome of a request in one word.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Status {
            $($(#[$doc])* $name = $code,)*
        }

        impl Status {
            /// Every status there is, in the order of the codes.
            pub const ALL: &[Status] = &[$(Status::$name,)*];

            /// Reads a code.
            pub fn from_code(code: u8) -> Decoded<Status> {
                match code {
                    $($code => Ok(Status::$name),)*
                    _ => Err(DecodeError::Invalid("status")),
                }
            }

            /// The name as documents and tools print it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Status::$name => $text,)*
                }
            }

            /// What a client may do next.
            pub fn retry(self) -> Retry {
                match self {
                    $(Status::$name => Retry::$retry,)*
                }
            }
        }
    };
}

statuses! {
    /// Executed.
    0 Ok "OK" Done;
    /// Executed: the acquire waits in line; its final reply follows.
    1 Queued "QUEUED" Done;
    /// Executed: the acquire waited as long as it asked to (at once, for a try) and holds nothing.
    2 TimedOut "TIMED_OUT" Done;
    /// Not executed: the request contradicts the state of the lock (another number of permits, for example) or of the cell.
    3 Conflict "CONFLICT" Never;
    /// Executed, nothing changed: the same owner holds or waits for this name under another request id.
    4 AlreadyHeld "ALREADY_HELD" Done;
    /// Executed earlier: it had been granted, and that hold has ended since.
    5 Lost "LOST" Done;
    /// Executed: the acquire was cancelled and holds nothing.
    6 Cancelled "CANCELLED" Done;
    /// Executed, nothing changed: the token or the acquire id does not name a live hold.
    7 StaleToken "STALE_TOKEN" Done;
    /// Not executed: the request id is below the session's window, so its outcome is no longer known.
    8 StaleRequest "STALE_REQUEST" Never;
    /// Not executed: the session has ended (its id is at or below the applied index).
    9 SessionExpired "SESSION_EXPIRED" Never;
    /// Not executed: no session of this epoch ever had this id.
    10 SessionUnknown "SESSION_UNKNOWN" Never;
    /// Not executed: the session is not attached to this connection; attach it first.
    11 NotAttached "NOT_ATTACHED" Anywhere;
    /// Not executed: ask the leader; the reply may carry a hint.
    12 NotLeader "NOT_LEADER" Anywhere;
    /// Not executed: this connection or node does not serve that cell.
    13 WrongCell "WRONG_CELL" Anywhere;
    /// Not executed: the leader has no contact with a majority, or its commits stall.
    14 NoQuorum "NO_QUORUM" Anywhere;
    /// The leader lost its office while the request was on its way to a majority.
    15 OutcomeUnknown "OUTCOME_UNKNOWN" SameRequestId;
    /// Not executed: a queue is full; try again after the delay in the reply.
    16 Overloaded "OVERLOADED" Anywhere;
    /// Not executed: over one of the cell's limits; the reply says which.
    17 Limit "LIMIT" Never;
    /// Not executed: a field has a value that it cannot have; the reply says which.
    18 Invalid "INVALID" Never;
    /// Not executed: this identity may not do that.
    19 Denied "DENIED" Never;
    /// Not executed: the disks are full; reads, keep-alives and releases go on.
    20 NoSpace "NO_SPACE" Anywhere;
    /// What was asked for is no longer kept: events, which are resumed from the revision in the reply; a snapshot.
    21 Compacted "COMPACTED" Done;
    /// The watcher fell behind and was cut off; resume from the revision in the reply.
    22 Lagged "LAGGED" Done;
    /// Not executed: this node is stopping; another member serves.
    23 ShuttingDown "SHUTTING_DOWN" Anywhere;
    /// Not executed: this build or feature level does not have that call.
    24 Unsupported "UNSUPPORTED" Never;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_its_own_and_survives_the_wire() {
        for (code, status) in Status::ALL.iter().enumerate() {
            assert_eq!(*status as usize, code);
            assert_eq!(Status::from_code(*status as u8), Ok(*status));
        }
        let beyond = u8::try_from(Status::ALL.len()).unwrap();
        assert_eq!(Status::from_code(beyond), Err(DecodeError::Invalid("status")));
    }
}
