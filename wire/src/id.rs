//! The identifiers of the system, one newtype per idea.
//!
//! Invariant: numbers of different kinds never meet by accident. Deliberately absent: how any of
//! them is drawn or advanced; that belongs to the part that owns them.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $repr:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $repr);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// A member of a cell; never reused within a cluster. 0 is nobody.
    NodeId, u16
);
number!(
    /// One Raft group of the cluster.
    CellId, u16
);
number!(
    /// A Raft term (Raft, section 5.1). 0 is before the first election.
    Term, u64
);
number!(
    /// A position in a cell's log; the first entry is 1, 0 is before it. Below 2^48.
    LogIndex, u64
);
number!(
    /// A session: (epoch << 48) | the index of the entry that opened it.
    SessionId, u64
);
number!(
    /// A fencing token: (epoch << 48) | the index of the entry that granted (ARCHITECTURE section 2).
    FencingToken, u64
);
number!(
    /// A revision of a cell's state: (epoch << 48) | the index of the entry that changed it.
    Revision, u64
);
number!(
    /// Who holds within a session, as the client chose it; a fresh one per acquire by default.
    Owner, u64
);
number!(
    /// The number of a mutation within its session; increases, starts at 1. An acquire's request id
    /// also names the hold or wait that it made.
    RequestId, u64
);
number!(
    /// Ties a reply to its request on one connection; chosen by whoever asks. 0 marks what nobody asked for.
    Correlation, u64
);
number!(
    /// What a cell's numbers start above; raised from outside whenever a cell is restored. Below 0x8000.
    Epoch, u16
);
number!(
    /// The set of features that an entry, a frame or a snapshot may use. Level 1 is the first release.
    FeatureLevel, u16
);
number!(
    /// One read round of a leader (ARCHITECTURE section 4.2); unique within its term.
    RoundId, u64
);

impl LogIndex {
    /// The index after this one.
    pub fn next(self) -> LogIndex {
        LogIndex(self.0 + 1)
    }

    /// The index before this one; 0 stays 0.
    pub fn prev(self) -> LogIndex {
        LogIndex(self.0.saturating_sub(1))
    }
}

impl Epoch {
    /// One above the largest epoch: a token must fit a signed 64-bit column.
    pub const LIMIT: u16 = 0x8000;

    /// The epoch and the index in one number, as tokens, revisions and session ids carry them.
    ///
    /// # Panics
    /// When the index does not fit its 48 bits: a cell has failed long before.
    pub fn with(self, index: LogIndex) -> u64 {
        assert!(index.0 < 1 << 48, "log index {index} does not fit 48 bits");
        (u64::from(self.0) << 48) | index.0
    }
}

impl FencingToken {
    /// The index of the granting entry.
    pub fn index(self) -> LogIndex {
        LogIndex(self.0 & ((1 << 48) - 1))
    }

    /// The epoch that it was granted in.
    pub fn epoch(self) -> Epoch {
        Epoch(u16::try_from(self.0 >> 48).expect("16 bits are left"))
    }
}

macro_rules! random {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    };
}

random!(
    /// 128 random bits that name one cluster; drawn when its first node is formatted.
    ClusterId
);
random!(
    /// 128 random bits that name one life of a data directory; drawn by formatting (ARCHITECTURE section 4.1).
    Incarnation
);
random!(
    /// 128 random bits that name the birth of a cell (ARCHITECTURE section 4.1).
    BirthId
);
/// 128 random bits that make opening a session idempotent and prove its owner. A secret: it has no
/// `Display`, and its `Debug` shows nothing of it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub [u8; 16]);

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce(..)")
    }
}
