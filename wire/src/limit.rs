//! The hard limits of the protocol: no configuration raises them, and no decoder reads past them.
//!
//! Invariant: whatever is within these limits fits its frame, its log record and its replay (ARCHITECTURE
//! section 2, "What is accepted always replays"). The softer limits of a cell live in its replicated config.

/// A lock name, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 512;
/// A client id, in bytes of UTF-8.
pub const CLIENT_ID_BYTES_MAX: usize = 128;
/// An owner's data on a hold, in bytes.
pub const DATA_BYTES_MAX: usize = 1024;
/// Credentials in a Hello, in bytes.
pub const CREDENTIALS_BYTES_MAX: usize = 2048;
/// An address `host:port`, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 255;
/// Names in one acquire.
pub const NAMES_PER_ACQUIRE_MAX: usize = 16;
/// Outcomes that a session has not yet said it has seen, and request ids below the highest not yet seen.
pub const REQUEST_WINDOW_MAX: usize = 64;
/// Sessions in one batch: attach, keep-alive, an entry that ends sessions.
pub const SESSIONS_PER_BATCH_MAX: usize = 1024;
/// Holders or waiters in one view of a lock; a view of more says so.
pub const VIEW_ROWS_MAX: usize = 128;
/// Members of a cell.
pub const MEMBERS_MAX: usize = 15;
/// Cells of a cluster.
pub const CELLS_MAX: usize = 64;
/// Routes in one answer.
pub const ROUTES_MAX: usize = 1024;

/// The shortest and the longest TTL of a session, in ms.
pub const TTL_MS_MIN: u32 = 1_000;
/// See [`TTL_MS_MIN`].
pub const TTL_MS_MAX: u32 = 60_000;
/// The longest wait of an acquire, in ms: a day.
pub const WAIT_MS_MAX: u32 = 86_400_000;
/// Request ids are from 1 to below this, so that the next one always exists.
pub const REQUEST_ID_LIMIT: u64 = 1 << 63;
/// The longest lock-delay, in ms.
pub const LOCK_DELAY_MS_MAX: u32 = 60_000;

/// A frame before a valid Hello, in bytes behind the length and checksum fields.
pub const FIRST_FRAME_BYTES_MAX: usize = 4 * 1024;
/// A frame from a client, likewise.
pub const CLIENT_FRAME_BYTES_MAX: usize = 64 * 1024;
/// A frame from a server to a client, likewise.
pub const REPLY_FRAME_BYTES_MAX: usize = 1024 * 1024;
/// A frame between members, likewise.
pub const PEER_FRAME_BYTES_MAX: usize = 1024 * 1024;
/// The payload of one log entry, in bytes.
pub const ENTRY_BYTES_MAX: usize = 32 * 1024;
/// Payload and heads of the entries in one append message, in bytes; one entry always fits.
pub const APPEND_BYTES_MAX: usize = 256 * 1024;
/// The bytes of one piece of a snapshot: with its head in a file it takes 128 KiB.
pub const SNAPSHOT_PIECE_BYTES_MAX: usize = 128 * 1024 - 64;
