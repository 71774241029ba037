//! The real table held against the model.
//!
//! Invariant: only what the table's readings show is compared; neither side is asked how it got there.

use lockstep_core::table::{Answer, Table};
use lockstep_wire::{FencingToken, SessionId};

use super::Model;
use super::reading::{HolderState, LockState, SessionState, WaiterState};

/// Where table and model differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What was looked at.
    pub subject: String,
    /// What the table shows.
    pub table: String,
    /// What the model shows.
    pub model: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n  table: {}\n  model: {}", self.subject, self.table, self.model)
    }
}

pub(super) fn same<T: PartialEq + std::fmt::Debug>(
    subject: &str,
    table: &T,
    model: &T,
) -> Result<(), Difference> {
    if table == model {
        return Ok(());
    }
    Err(Difference { subject: subject.to_owned(), table: format!("{table:?}"), model: format!("{model:?}") })
}

/// Compares everything that readings show.
///
/// # Errors
/// The first difference.
pub fn compare(table: &Table, model: &Model) -> Result<(), Difference> {
    same("applied index", &table.applied(), &model.applied())?;
    same("something is left to reap", &table.needs_reaping(), &model.needs_reaping())?;
    let names: Vec<&str> = table.locks_from("").map(|(name, _)| name).collect();
    let mut expected: Vec<&str> = model.lock_names().collect();
    expected.sort_unstable();
    same("names of locks", &names, &expected)?;
    for name in names {
        compare_lock(table, model, name)?;
    }
    same("number of sessions", &table.sessions_len(), &model.session_ids().count())?;
    for id in model.session_ids() {
        compare_session(table, model, id)?;
    }
    same("session records", &table.sessions_len(), &model.session_ids().count())?;
    Ok(())
}

/// Compares one lock.
///
/// # Errors
/// The difference.
pub fn compare_lock(table: &Table, model: &Model, name: &str) -> Result<(), Difference> {
    let expected = model.lock(name);
    let shown = lock_of(table, name);
    let subject = format!("lock {name}");
    same(&subject, &shown, &expected)?;
    let reading = table.lock(name);
    same(&subject, &(reading.holders_total() as usize), &expected.holders.len())?;
    same(&subject, &(reading.waiters_total() as usize), &expected.waiters.len())?;
    let latest = expected.holders.iter().map(|holder| holder.token).max().unwrap_or_default();
    let someone = expected.holders.first().map(|holder| holder.session);
    for (token, of) in [(latest, None), (FencingToken(latest.0.wrapping_add(1)), None), (latest, someone)] {
        let checked = table.check(name, token, of);
        let shown = (checked.is_current, checked.latest_token, checked.fence_floor);
        same(&format!("check of token {token} of {name}"), &shown, &model.check(name, token, of))?;
    }
    Ok(())
}

/// Compares one session.
///
/// # Errors
/// The difference.
pub fn compare_session(table: &Table, model: &Model, id: SessionId) -> Result<(), Difference> {
    same(&format!("session {id}"), &session_of(table, id), &model.session(id))
}

/// A session as a table shows it.
///
/// # Errors
/// There is none that lives.
///
/// # Panics
/// When a list is longer or shorter than it says.
pub fn session_of(table: &Table, id: SessionId) -> Result<SessionState, Answer> {
    table.session(id).map(|reading| {
        let mut claims: Vec<_> = reading
            .claims()
            .map(|claim| {
                (claim.acquire_id, claim.owner, claim.mode, claim.token, claim.fence, claim.name.to_owned())
            })
            .collect();
        assert_eq!(claims.len(), reading.claims_total(), "a list is as long as it says");
        claims.sort();
        SessionState {
            ttl_ms: reading.ttl_ms(),
            client_id: reading.client_id().to_owned(),
            silence_ms: u64::from(reading.silence_ms()),
            next_request_id: reading.next_request_id(),
            claims,
        }
    })
}

/// A lock as a table shows it.
pub fn lock_of(table: &Table, name: &str) -> LockState {
    let reading = table.lock(name);
    LockState {
        exists: reading.exists(),
        mode: reading.mode(),
        fence_floor: reading.fence_floor(),
        holders: reading
            .holders()
            .map(|holder| HolderState {
                session: holder.session,
                owner: holder.owner,
                acquire_id: holder.acquire_id,
                token: holder.token,
                fence: holder.fence,
                client_id: holder.client_id.to_owned(),
                data: holder.data.to_vec(),
            })
            .collect(),
        waiters: reading
            .waiters()
            .map(|waiter| WaiterState {
                session: waiter.session,
                owner: waiter.owner,
                acquire_id: waiter.acquire_id,
                mode: waiter.mode,
                position: waiter.position,
            })
            .collect(),
    }
}
