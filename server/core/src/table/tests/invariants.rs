//! What is true of every state, checked by looking at every record.

use lockstep_wire::limit::REQUEST_WINDOW_MAX;
use lockstep_wire::request::Mode;

use crate::table::Table;
use crate::table::promotion::Occupancy;
use crate::table::record::{ClaimState, LockSlot, SessionSlot};

/// Checks every invariant of the state.
pub(super) fn assert_coherent(table: &Table) {
    assert_eq!(table.digest(), table.recomputed_digest(), "the digest follows every change");
    let mut claims = 0;
    for (slot, session) in table.sessions.iter() {
        assert_session_coherent(table, slot);
        claims += session.claims.len();
    }
    let acquires: u32 = table.holds.iter().map(|(_, hold)| hold.acquires).sum();
    assert_eq!(claims, table.waits.len() + acquires as usize, "claims, and holds and waits, name each other");
    let mut holds = 0;
    let mut waits = 0;
    for (slot, lock) in table.locks.iter() {
        assert_lock_coherent(table, slot);
        holds += lock.holds.len() as usize;
        waits += lock.waits.len() as usize;
    }
    assert_eq!((holds, waits), (table.holds.len(), table.waits.len()), "every hold and wait is in its lock");
    assert_eq!(table.locks.len(), table.locks_by_name.len());
    assert_eq!(table.sessions.len(), table.sessions_by_id.len());
    let live = table.sessions.iter().filter(|(_, session)| session.is_live()).count();
    assert_eq!(live, table.sessions_by_nonce.len(), "only live sessions are found by nonce");
    assert_eq!(table.sessions.len() - live, table.reap_queue.len(), "every ended session is to be reaped");
    if table.is_quiet() {
        assert_eq!(table.holds.len(), 0, "nobody holds anything in a quiet cell");
        assert_eq!(table.marks.len(), table.locks.len(), "every line is promoted in the end");
    }
    for (place, lock) in &table.marks {
        assert_eq!(table.locks[*lock].mark, Some(*place), "a mark names its lock");
    }
}

fn assert_session_coherent(table: &Table, slot: SessionSlot) {
    let session = &table.sessions[slot];
    let is_waiting = |state| matches!(state, ClaimState::Waits(_));
    let is_unseen = |state| matches!(state, ClaimState::Holds { is_seen: false, .. });
    let count =
        |of: &dyn Fn(ClaimState) -> bool| session.claims.iter().filter(|claim| of(claim.state)).count();
    assert_eq!(session.waiting, count(&is_waiting));
    assert_eq!(session.unseen, count(&is_unseen));
    assert!(session.waiting + session.unseen <= REQUEST_WINDOW_MAX, "every outcome to come has its place");
    assert!(session.gaps.len() <= REQUEST_WINDOW_MAX, "the window is bounded");
    assert!(session.gaps.is_sorted() && session.claims.is_sorted_by_key(|claim| claim.id));
    assert!(session.kept.is_sorted_by_key(|kept| kept.id));
    for id in session.claims.iter().map(|claim| claim.id).chain(session.kept.iter().map(|kept| kept.id)) {
        assert!(id <= session.highest && session.gaps.binary_search(&id).is_err(), "{id} was consumed");
        let both = session.claim(id).is_some() && session.kept(id).is_some();
        assert!(!both, "{id} has one record, not two");
    }
    for claim in &session.claims {
        let owner = match claim.state {
            ClaimState::Waits(wait) => table.waits[wait].session,
            ClaimState::Holds { hold, .. } => table.holds[hold].session,
        };
        assert_eq!(owner, slot, "no hold or wait outlives its session");
    }
}

fn assert_lock_coherent(table: &Table, slot: LockSlot) {
    let lock = &table.locks[slot];
    assert!(!lock.is_empty(), "{} is deleted when nothing of it is left", lock.name);
    let is_marked = lock.mark.is_some_and(|place| table.marks.get(&place) == Some(&slot));
    assert_eq!(lock.mark.is_some(), is_marked);
    let live = lock.holds.iter(&table.holds).filter(|(_, hold)| table.is_live(hold.session));
    let live: Vec<_> = live.map(|(_, hold)| hold).collect();
    if live.iter().any(|hold| hold.mode == Mode::Exclusive) {
        assert_eq!(live.len(), 1, "{} is held exclusively by one", lock.name);
    }
    assert!(live.windows(2).all(|pair| pair[0].fence == pair[1].fence), "sharers present one fence");
    assert!(live.iter().all(|hold| hold.fence <= hold.token));
    let mut owners: Vec<_> = live.iter().map(|hold| (hold.session, hold.owner)).collect();
    let waits: Vec<_> = lock.waits.iter(&table.waits).map(|(_, wait)| wait).collect();
    owners.extend(
        waits.iter().filter(|wait| table.is_live(wait.session)).map(|wait| (wait.session, wait.owner)),
    );
    owners.sort();
    assert!(owners.windows(2).all(|pair| pair[0] != pair[1]), "an owner holds or waits once");
    assert!(waits.is_sorted_by(|one, next| one.since < next.since), "first come, first in line");
    let head = waits.iter().find(|wait| table.is_live(wait.session));
    if let (Some(head), false) = (head, table.needs_reaping() || table.is_quiet()) {
        let has_room = head.mode == Mode::Exclusive || !table.is_full_of_holders(slot);
        let is_grantable = table.occupancy(slot).admits(head.mode) && has_room;
        assert!(!is_grantable, "{} could be granted to the head of the line", lock.name);
    }
    assert_eq!(table.occupancy(slot) == Occupancy::Vacant, live.is_empty());
}
