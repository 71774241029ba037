//! The items of a snapshot as bytes: `put` and `read` of each, side by side.
//!
//! Invariant: what is put is read back as it was, and no slot is put: records are named by ids and names. Deliberately
//! absent: whether items agree with each other.

use lockstep_wire::cursor::{Reader, Writer};
use lockstep_wire::frame::LEVEL;
use lockstep_wire::limit::{CLIENT_ID_BYTES_MAX, DATA_BYTES_MAX, NAME_BYTES_MAX, REQUEST_WINDOW_MAX};
use lockstep_wire::reply::EndReason;
use lockstep_wire::request::Mode;
use lockstep_wire::{
    DecodeError, Decoded, Epoch, FencingToken, LogIndex, Nonce, Owner, RequestId, SessionId,
};

use crate::members::Membership;
use crate::table::cell::{CellNumbers, Table};
use crate::table::digest;
use crate::table::limits::Limits;
use crate::table::outcome::Settled;
use crate::table::record::{self, Claim, ClaimState, Hold, HoldSlot, Kept, Lock, Session, Wait};

/// The length in front of an item, in bytes.
pub(super) const LENGTH_BYTES: usize = 4;

/// What a snapshot begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) numbers: CellNumbers,
    pub(super) digest: u64,
    /// [`Limits::fields`].
    pub(super) limits: [u32; Limits::FIELDS],
    pub(super) sessions: u32,
    pub(super) locks: u32,
}

/// A lock without its holds and waits.
pub(super) struct LockHead<'a> {
    pub(super) name: &'a str,
    pub(super) mark: Option<u64>,
    pub(super) holds: u32,
    pub(super) waits: u32,
}

/// A hold without its acquires.
pub(super) struct HoldHead<'a> {
    pub(super) session: SessionId,
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    pub(super) token: FencingToken,
    pub(super) fence: FencingToken,
    pub(super) data: &'a [u8],
    pub(super) acquires: u32,
}

/// One acquire of a hold.
#[derive(Clone, Copy)]
pub(super) struct Acquired {
    pub(super) id: RequestId,
    pub(super) content: u64,
    pub(super) is_seen: bool,
}

/// A wait.
pub(super) struct WaitItem<'a> {
    pub(super) session: SessionId,
    pub(super) owner: Owner,
    pub(super) acquire_id: RequestId,
    pub(super) content: u64,
    pub(super) mode: Mode,
    pub(super) data: &'a [u8],
    pub(super) wait_ms: u32,
    pub(super) position: u32,
    pub(super) since: LogIndex,
}

/// Puts an item behind its length.
fn put_item(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.put_u32(0);
    put(out);
    let length = count(out.len() - at - LENGTH_BYTES);
    out[at..at + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
}

fn count(len: usize) -> u32 {
    u32::try_from(len).expect("the limits keep every count below 2^32")
}

impl Header {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_item(out, |out| {
            let at = out.len();
            out.put_u16(LEVEL.0);
            out.put_u16(self.numbers.epoch.0);
            out.put_u64(self.numbers.applied.0);
            out.put_u64(self.digest);
            out.put_u64(self.numbers.reap_places);
            out.put_u64(self.numbers.mark_places);
            out.put_bool(self.numbers.is_quiet);
            for field in self.limits {
                out.put_u32(field);
            }
            out.put_u32(self.sessions);
            out.put_u32(self.locks);
            let check = digest::bytes(&out[at..]);
            out.put_u64(check);
        });
    }

    pub(super) fn read(item: &[u8]) -> Decoded<Header> {
        let reader = &mut Reader::new(item);
        let level = reader.u16("feature_level")?;
        if level != LEVEL.0 {
            return Err(DecodeError::UnknownLevel(level));
        }
        let epoch = Epoch(reader.u16("epoch")?);
        let applied = LogIndex(reader.u64("applied")?);
        if epoch.0 >= Epoch::LIMIT || applied.0 >= 1 << 48 {
            return Err(DecodeError::Invalid("applied"));
        }
        let digest = reader.u64("digest")?;
        let reap_places = reader.u64("reap_places")?;
        let mark_places = reader.u64("mark_places")?;
        let is_quiet = reader.bool("quiet")?;
        let mut limits = [0; Limits::FIELDS];
        for field in &mut limits {
            *field = reader.u32("limits")?;
        }
        let (sessions, locks) = (reader.u32("sessions")?, reader.u32("locks")?);
        let hashed = &item[..item.len() - reader.remaining()];
        if reader.u64("check")? != digest::bytes(hashed) {
            return Err(DecodeError::Invalid("check"));
        }
        reader.finish()?;
        let numbers = CellNumbers { epoch, applied, reap_places, mark_places, is_quiet };
        Ok(Header { numbers, digest, limits, sessions, locks })
    }
}

pub(super) fn put_members(members: Option<&Membership>, out: &mut Vec<u8>) {
    put_item(out, |out| {
        if let Some(members) = members {
            members.with_rows(|rows| rows.put(out));
        }
    });
}

pub(super) fn read_members(item: &[u8]) -> Decoded<Option<Membership>> {
    if item.is_empty() {
        return Ok(None);
    }
    let reader = &mut Reader::new(item);
    let members = Membership::read(reader)?;
    reader.finish()?;
    Ok(Some(members))
}

pub(super) fn put_session(session: &Session, out: &mut Vec<u8>) {
    put_item(out, |out| {
        out.put_u64(session.id.0);
        out.put_bytes(session.client_id.as_bytes());
        out.put_u32(session.ttl_ms);
        out.put(&session.nonce.0);
        out.put_u32(session.silence_ms);
        out.put_u64(session.highest.0);
        out.put_bool(!session.is_live());
        if let Some(reason) = session.ended {
            out.put_u8(reason as u8);
            out.put_u64(session.reap_place);
        }
        out.put_u16(u16::try_from(session.gaps.len()).expect("the window is bounded"));
        for gap in &session.gaps {
            out.put_u64(gap.0);
        }
        out.put_u32(count(session.kept.len()));
        for kept in &session.kept {
            put_kept(kept, out);
        }
    });
}

/// Reads a session, which has no claims yet.
pub(super) fn read_session(item: &[u8]) -> Decoded<Session> {
    let reader = &mut Reader::new(item);
    let id = SessionId(reader.u64("session")?);
    let client_id = reader.text(CLIENT_ID_BYTES_MAX, "client_id")?;
    let ttl_ms = reader.u32("ttl_ms")?;
    let nonce = Nonce(reader.random("nonce")?);
    let silence_ms = reader.u32("silence_ms")?;
    let highest = RequestId(reader.u64("highest")?);
    let (ended, reap_place) = match reader.bool("ended")? {
        true => (Some(EndReason::read(reader)?), reader.u64("reap_place")?),
        false => (None, 0),
    };
    let gaps_len = usize::from(reader.u16("gaps")?);
    if gaps_len > REQUEST_WINDOW_MAX {
        return Err(DecodeError::TooLarge("gaps"));
    }
    let mut gaps = Vec::with_capacity(gaps_len);
    for _ in 0..gaps_len {
        gaps.push(RequestId(reader.u64("gaps")?));
    }
    let mut kept = Vec::new();
    for _ in 0..reader.u32("outcomes")? {
        kept.push(read_kept(reader)?);
    }
    reader.finish()?;
    Ok(Session {
        id,
        client_id: Box::from(client_id),
        ttl_ms,
        nonce,
        identity: record::identity(id, client_id, ttl_ms, nonce),
        ended,
        reap_place,
        silence_ms,
        highest,
        gaps,
        claims: Vec::new(),
        kept,
        waiting: 0,
        unseen: 0,
        copied_for: 0,
    })
}

fn put_kept(kept: &Kept, out: &mut Vec<u8>) {
    out.put_u64(kept.id.0);
    out.put_u64(kept.content);
    let [kind, ..] = kept.settled.words();
    out.put_u8(u8::try_from(kind).expect("there are few kinds"));
    match kept.settled {
        Settled::TimedOut | Settled::Cancelled | Settled::Done | Settled::StaleToken => {}
        Settled::AlreadyHeld { acquire_id, token } => {
            out.put_u64(acquire_id.0);
            out.put_u64(token.0);
        }
        Settled::Lost { token, reason } => {
            out.put_u64(token.0);
            out.put_u8(reason as u8);
        }
    }
}

fn read_kept(reader: &mut Reader<'_>) -> Decoded<Kept> {
    let id = RequestId(reader.u64("outcome")?);
    let content = reader.u64("content")?;
    let settled = match reader.u8("kind")? {
        1 => Settled::TimedOut,
        2 => Settled::Cancelled,
        3 => Settled::AlreadyHeld {
            acquire_id: RequestId(reader.u64("acquire_id")?),
            token: FencingToken(reader.u64("token")?),
        },
        4 => Settled::Lost { token: FencingToken(reader.u64("token")?), reason: EndReason::read(reader)? },
        5 => Settled::Done,
        6 => Settled::StaleToken,
        _ => return Err(DecodeError::Invalid("kind")),
    };
    Ok(Kept { id, content, settled })
}

/// The name is the lock's own, from wherever it is at hand.
pub(super) fn put_lock_head(name: &str, lock: &Lock, out: &mut Vec<u8>) {
    put_item(out, |out| {
        out.put_bytes(name.as_bytes());
        out.put_u64(lock.mark.unwrap_or(0));
        out.put_u32(lock.holds.len());
        out.put_u32(lock.waits.len());
    });
}

impl<'a> LockHead<'a> {
    pub(super) fn read(item: &'a [u8]) -> Decoded<LockHead<'a>> {
        let reader = &mut Reader::new(item);
        let name = reader.text(NAME_BYTES_MAX, "name")?;
        let place = reader.u64("mark")?;
        let (holds, waits) = (reader.u32("holds")?, reader.u32("waits")?);
        reader.finish()?;
        Ok(LockHead { name, mark: (place != 0).then_some(place), holds, waits })
    }
}

pub(super) fn put_hold(table: &Table, slot: HoldSlot, out: &mut Vec<u8>) {
    let hold = &table.holds[slot];
    let session = &table.sessions[hold.session];
    put_item(out, |out| {
        out.put_u64(session.id.0);
        out.put_u64(hold.owner.0);
        out.put_u8(hold.mode as u8);
        out.put_u64(hold.token.0);
        out.put_u64(hold.fence.0);
        out.put_bytes(&hold.data);
        out.put_u32(hold.acquires);
        for acquired in acquires_of(session, slot, hold) {
            out.put_u64(acquired.id.0);
            out.put_u64(acquired.content);
            out.put_bool(acquired.is_seen);
        }
    });
}

/// The acquires of a hold, by id: looked for from the lowest on, until all are found.
fn acquires_of(session: &Session, slot: HoldSlot, hold: &Hold) -> impl Iterator<Item = Acquired> {
    let lowest = session.claims.partition_point(|claim| claim.id < hold.acquire_id);
    let of_hold = move |claim: &Claim| match claim.state {
        ClaimState::Holds { hold, is_seen } => {
            (hold == slot).then_some(Acquired { id: claim.id, content: claim.content, is_seen })
        }
        ClaimState::Waits(_) => None,
    };
    session.claims[lowest..].iter().filter_map(of_hold).take(hold.acquires as usize)
}

impl<'a> HoldHead<'a> {
    /// Reads a hold; its acquires are next.
    pub(super) fn read(reader: &mut Reader<'a>) -> Decoded<HoldHead<'a>> {
        Ok(HoldHead {
            session: SessionId(reader.u64("session")?),
            owner: Owner(reader.u64("owner")?),
            mode: Mode::read(reader)?,
            token: FencingToken(reader.u64("token")?),
            fence: FencingToken(reader.u64("fence")?),
            data: reader.bytes(DATA_BYTES_MAX, "data")?,
            acquires: reader.u32("acquires")?,
        })
    }
}

impl Acquired {
    pub(super) fn read(reader: &mut Reader<'_>) -> Decoded<Acquired> {
        Ok(Acquired {
            id: RequestId(reader.u64("acquire_id")?),
            content: reader.u64("content")?,
            is_seen: reader.bool("seen")?,
        })
    }
}

pub(super) fn put_wait(table: &Table, wait: &Wait, out: &mut Vec<u8>) {
    let session = &table.sessions[wait.session];
    let claim = session.claim(wait.acquire_id).expect("a wait has its claim");
    put_item(out, |out| {
        out.put_u64(session.id.0);
        out.put_u64(wait.owner.0);
        out.put_u64(wait.acquire_id.0);
        out.put_u64(claim.content);
        out.put_u8(wait.mode as u8);
        out.put_bytes(&wait.data);
        out.put_u32(wait.wait_ms);
        out.put_u32(wait.position);
        out.put_u64(wait.since.0);
    });
}

impl<'a> WaitItem<'a> {
    pub(super) fn read(item: &'a [u8]) -> Decoded<WaitItem<'a>> {
        let reader = &mut Reader::new(item);
        let wait = WaitItem {
            session: SessionId(reader.u64("session")?),
            owner: Owner(reader.u64("owner")?),
            acquire_id: RequestId(reader.u64("acquire_id")?),
            content: reader.u64("content")?,
            mode: Mode::read(reader)?,
            data: reader.bytes(DATA_BYTES_MAX, "data")?,
            wait_ms: reader.u32("wait_ms")?,
            position: reader.u32("position")?,
            since: LogIndex(reader.u64("since")?),
        };
        reader.finish()?;
        Ok(wait)
    }
}
