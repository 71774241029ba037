//! Known-bad variants of the real parts, to prove that the simulator sees (ARCHITECTURE section 7, "Mutation check").
//!
//! Invariant: without the feature `mutants` [`is`] is the constant `false`, so that nothing of any variant is left in what
//! is built, and nothing can choose one; the server refuses to compile with it. With it, one variant at most is
//! chosen on each thread. It stands in this crate because the log, the core and the client all stand on this one.
//! Deliberately absent: what a variant does; that is one short `if` where the fault would be made.

/// Whether this build can be told to misbehave. What serves anybody must not be.
pub const ARE_BUILT_IN: bool = cfg!(feature = "mutants");

macro_rules! mutants {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// A fault of the contract (ARCHITECTURE section 1), in one of the real parts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutant {
            $($(#[$doc])* $variant,)+
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &'static [Mutant] = &[$(Mutant::$variant,)+];

            /// What it is called in tables and on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Mutant::$variant => $name,)+
                }
            }
        }
    };
}

mutants! {
    /// An entry counts as durable when it is appended, not when the disk has it (contract 8).
    AcknowledgeBeforeDurable = "acknowledge-before-durable",
    /// A vote leaves before the disk has it, so that a crash takes it back (contract 8).
    VoteBeforeDurable = "vote-before-durable",
    /// A keep-alive is acknowledged by whoever believes to lead (contract 2).
    KeepAliveWithoutRound = "keep-alive-without-round",
    /// A read is answered by whoever believes to lead (contract 4).
    ReadWithoutRound = "read-without-round",
    /// A new leader answers before its blank entry has been applied, and with it what was committed (contract 4).
    ServeBeforeBlank = "serve-before-blank",
    /// A session is ended without a look at the input that was waiting (contract 2).
    ExpireWithoutDrain = "expire-without-drain",
    /// An entry that ends several sessions promotes after each of them: two holders get one token (contract 1).
    PromoteInsideRemovals = "promote-inside-removals",
    /// A shared request is granted past an exclusive one that waits (contract 3).
    SharedBargesPast = "shared-barges-past",
    /// A new leader's first entry forgets what requests sessions have made: retries run again (contract 5).
    WindowLostAtFailover = "window-lost-at-failover",
    /// A cancel that meets the grant leaves the hold to nobody (contract 5).
    CancelForgetsGrant = "cancel-forgets-grant",
    /// A token counts the holders of its lock's record, and starts again with it (contract 1).
    TokenFromCounter = "token-from-counter",
    /// Recovery cuts the log at a damaged batch although valid ones follow (contract 8).
    TruncateAtRot = "truncate-at-rot",
    /// A write that failed counts as done (contract 8).
    GoOnAfterFailedSync = "go-on-after-failed-sync",
    /// A leader commits an entry of an older term because a majority has it (contract 8).
    CommitOlderTerm = "commit-older-term",
    /// A new segment is written to before its name is durable (contract 8).
    SkipDirectorySync = "skip-directory-sync",
    /// The client's deadline counts from when an acknowledgement came (contract 2).
    DeadlineFromReceipt = "deadline-from-receipt",
    /// A retry of an acquire whose hold has ended is told that it was granted (contract 5).
    ReplayIgnoresHold = "replay-ignores-hold",
    /// A retry of a release gives back what its session has got on that name since (contract 5).
    ReleaseRunsTwice = "release-runs-twice",
    /// What the disk confirmed of entries that were truncated counts for those in their place (contract 8).
    AcknowledgementSurvivesTruncation = "acknowledgement-survives-truncation",
    /// A member whose directory was wiped is taken for the one that it was (contract 8).
    WipedNodeVotes = "wiped-node-votes",
    /// A session is acknowledged while its end is on its way (contract 2).
    AcknowledgeDoomed = "acknowledge-doomed",
    /// A session is acknowledged while the log calls it silent, which a successor would subtract (contract 2).
    AcknowledgeSilent = "acknowledge-silent",
    /// An increment of silence tells again what the one before it has told (contract 2).
    SilenceAddedTwice = "silence-added-twice",
    /// A leader that loses its office says that what is on its way was not executed (contract 6).
    DeposedSaysNotExecuted = "deposed-says-not-executed",
    /// A leader whose entries do not commit says of one it has just appended that it was not executed (contract 6).
    StallSaysNotExecuted = "stall-says-not-executed",
    /// Whoever knows the id of a session may attach it (contract 5).
    AttachWithoutNonce = "attach-without-nonce",
    /// Nothing tells a successor who has been silent (contract 2).
    SilenceNeverLogged = "silence-never-logged",
    /// A new leader gives a whole TTL to whoever the log calls silent (contract 2).
    SuccessorIgnoresSilence = "successor-ignores-silence",
    /// A new leader gives every session twice its TTL (contract 2).
    DeadlineDoubledAtFailover = "deadline-doubled-at-failover",
    /// The timer of a wait is armed for half of it (SEMANTICS, section 5).
    WaitCutShort = "wait-cut-short",
    /// A new leader arms no timers of the waits that it finds (SEMANTICS, section 5).
    WaitForgottenAtFailover = "wait-forgotten-at-failover",
    /// A leader whose disk is full refuses releases, too: nobody can give back what he holds (PROTOCOL, section 5).
    ReleaseRefusedForSpace = "release-refused-for-space",
    /// A table that is loaded from a snapshot has forgotten what requests sessions have made: retries run again (contract 5).
    WindowLostInSnapshot = "window-lost-in-snapshot",
    /// A snapshot is named by the last entry of the log, which its state does not hold yet (contract 8).
    SnapshotNamedAhead = "snapshot-named-ahead",
    /// A snapshot counts as whole before the disk was told to keep its last pieces (contract 8).
    SnapshotMarkedUnsynced = "snapshot-marked-unsynced",
    /// An installed snapshot moves the log on and leaves the lock table as it was (contract 8).
    InstallKeepsTable = "install-keeps-table",
    /// The mark of an installed snapshot is written without the truncation that makes room for it (contract 8).
    InstallWithoutTruncation = "install-without-truncation",
    /// A segment is recycled although it holds entries that no snapshot has (contract 8).
    RecycleUncoveredEntries = "recycle-uncovered-entries",
    /// A replica that lost its snapshot campaigns all the same, and leads without a state (contract 8).
    CampaignWithoutState = "campaign-without-state",
    /// An installed snapshot leaves the members as the log had them, which it has just replaced (contract 8).
    MembershipKeptAtInstall = "membership-kept-at-install",
    /// A node that was removed may be added again under its id, with another life (contract 8).
    NodeIdReused = "node-id-reused",
    /// What a learner's disk has counts for a majority (contract 8).
    LearnerCounts = "learner-counts",
    /// A leader tells a node that it was removed when it appends the list, which may yet be taken back (contract 8).
    FarewellBeforeCommit = "farewell-before-commit",
    /// Whoever waits to join gets the manifest before the birth, and says that the cell is born (contract 8).
    ManifestBeforeBirth = "manifest-before-birth",
    /// A restored cell grants at once what those who held it before may still believe to hold (contract 1).
    RestoreWithoutQuietTime = "restore-without-quiet-time",
}

/// Whether this is the variant that runs on this thread.
#[cfg(not(feature = "mutants"))]
#[must_use]
pub const fn is(_: Mutant) -> bool {
    false
}

#[cfg(feature = "mutants")]
mod choice {
    use std::cell::Cell;

    use super::Mutant;

    thread_local! {
        static CHOSEN: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Has everything on this thread run as this variant, or as it should.
    pub fn choose(mutant: Option<Mutant>) {
        CHOSEN.set(mutant);
    }

    /// Whether this is the variant that runs on this thread.
    #[must_use]
    pub fn is(mutant: Mutant) -> bool {
        CHOSEN.get() == Some(mutant)
    }
}

#[cfg(feature = "mutants")]
pub use choice::{choose, is};
