//! The limits of a cell: replicated, and the same on every replica (docs/SEMANTICS.md, section 9).
//!
//! Invariant: within them every refusal is typed and changes nothing. Deliberately absent: the protocol's hard
//! limits, which the decoder enforces.

use lockstep_wire::limit;

/// How much of everything a cell takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Session records, ended ones that are not reaped yet among them.
    pub sessions_max: u32,
    /// Lock records.
    pub locks_max: u32,
    /// Hold records of one lock.
    pub holders_per_lock_max: u32,
    /// Wait records of one lock.
    pub waiters_per_lock_max: u32,
    /// Holds (by acquire ids) and waits of one session.
    pub locks_per_session_max: u32,
    /// Acquire ids of one reentrant hold.
    pub acquires_per_hold_max: u32,
    /// A lock's name, in bytes.
    pub name_bytes_max: u32,
    /// A client id, in bytes.
    pub client_id_bytes_max: u32,
    /// The data of a hold, in bytes.
    pub data_bytes_max: u32,
    /// The shortest TTL, in ms; a shorter wish is raised to it.
    pub ttl_ms_min: u32,
    /// The longest TTL, in ms; a longer wish is cut to it.
    pub ttl_ms_max: u32,
    /// Removals and promotions in one entry; at least 4.
    pub transitions_per_entry_max: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sessions_max: 1_000_000,
            locks_max: 2_000_000,
            holders_per_lock_max: 1_024,
            waiters_per_lock_max: 16_384,
            locks_per_session_max: 1_024,
            acquires_per_hold_max: 64,
            name_bytes_max: hard(limit::NAME_BYTES_MAX),
            client_id_bytes_max: hard(limit::CLIENT_ID_BYTES_MAX),
            data_bytes_max: hard(limit::DATA_BYTES_MAX),
            ttl_ms_min: limit::TTL_MS_MIN,
            ttl_ms_max: limit::TTL_MS_MAX,
            transitions_per_entry_max: 4_096,
        }
    }
}

fn hard(limit: usize) -> u32 {
    u32::try_from(limit).expect("the protocol's limits are small")
}

impl Limits {
    /// Checks that the limits can be lived with.
    ///
    /// # Panics
    /// When they contradict each other: whoever configures a cell has checked them.
    pub(crate) fn assert_coherent(&self) {
        assert!(self.transitions_per_entry_max >= 4, "an entry must be able to make progress");
        assert!(self.ttl_ms_min <= self.ttl_ms_max, "the TTL's bounds must not cross");
    }

    /// How many fields there are.
    pub(crate) const FIELDS: usize = 12;

    /// The fields in their order, as digests and snapshots have them.
    pub(crate) fn fields(&self) -> [u32; Limits::FIELDS] {
        [
            self.sessions_max,
            self.locks_max,
            self.holders_per_lock_max,
            self.waiters_per_lock_max,
            self.locks_per_session_max,
            self.acquires_per_hold_max,
            self.name_bytes_max,
            self.client_id_bytes_max,
            self.data_bytes_max,
            self.ttl_ms_min,
            self.ttl_ms_max,
            self.transitions_per_entry_max,
        ]
    }
}

/// Which limit refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitKind {
    /// [`Limits::sessions_max`].
    Sessions,
    /// [`Limits::locks_max`].
    Locks,
    /// [`Limits::holders_per_lock_max`].
    HoldersPerLock,
    /// [`Limits::waiters_per_lock_max`].
    WaitersPerLock,
    /// [`Limits::locks_per_session_max`].
    LocksPerSession,
    /// [`Limits::acquires_per_hold_max`].
    AcquiresPerHold,
    /// 64 outcomes, waits and new grants of the session have not been said to be seen.
    UnseenOutcomes,
    /// [`Limits::name_bytes_max`].
    NameBytes,
    /// [`Limits::client_id_bytes_max`].
    ClientIdBytes,
    /// [`Limits::data_bytes_max`].
    DataBytes,
}

impl LimitKind {
    /// As replies and documents print it.
    pub fn name(self) -> &'static str {
        match self {
            LimitKind::Sessions => "sessions",
            LimitKind::Locks => "locks",
            LimitKind::HoldersPerLock => "holders_per_lock",
            LimitKind::WaitersPerLock => "waiters_per_lock",
            LimitKind::LocksPerSession => "locks_per_session",
            LimitKind::AcquiresPerHold => "acquires_per_hold",
            LimitKind::UnseenOutcomes => "unseen_outcomes",
            LimitKind::NameBytes => "name_bytes",
            LimitKind::ClientIdBytes => "client_id_bytes",
            LimitKind::DataBytes => "data_bytes",
        }
    }
}
