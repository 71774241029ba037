//! Snapshots: the same state gives the same bytes whatever goes on while they are written, the bytes give the same state,
//! and nothing else is taken for a snapshot.

use std::collections::BTreeSet;

use expect_test::expect;
use lockstep_wire::entry::Command;
use lockstep_wire::peer::MemberIncarnation;
use lockstep_wire::reply::EndReason;
use lockstep_wire::request::{Acquire, Mode, Mutation};
use lockstep_wire::{
    DecodeError, Epoch, FencingToken, Incarnation, LogIndex, NodeId, Nonce, Owner, RequestId, Rows, SessionId,
};
use proptest::prelude::*;

use super::invariants::assert_coherent;
use super::properties::{Run, Step, limits, step};
use super::script::Script;
use crate::members::Membership;
use crate::table::digest;
use crate::table::{Limits, SnapshotError, Table, TableLoader};

/// A whole snapshot in one go.
fn snapshot(table: &mut Table) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.begin_snapshot();
    assert!(table.write_snapshot(&mut bytes, usize::MAX), "all of it fits");
    bytes
}

fn load(limits: Limits, bytes: &[u8]) -> Result<Table, SnapshotError> {
    let mut loader = TableLoader::new(limits);
    loader.push(bytes)?;
    loader.finish()
}

/// A table with so many sessions, each of which holds one lock.
fn holding(sessions: u64) -> Table {
    holding_under(Limits::default(), sessions)
}

fn holding_under(limits: Limits, sessions: u64) -> Table {
    let mut table = Table::new(Epoch(0), limits);
    for number in 1..=sessions {
        let nonce = Nonce(u128::from(number).to_le_bytes());
        let open = Command::OpenSession { client_id: "c", ttl_ms: 9_000, nonce };
        table.apply(LogIndex(2 * number - 1), &open, &mut Vec::new());
        let acquire = Command::Acquire(Acquire {
            mutation: Mutation {
                session: SessionId(2 * number - 1),
                request_id: RequestId(1),
                seen: Rows::Slice(&[]),
            },
            owner: Owner(1),
            mode: Mode::Exclusive,
            is_reentrant: false,
            permits: 0,
            wait_ms: 0,
            lock_delay_ms: 0,
            max_hold_ms: 0,
            names: Rows::Slice(&[&format!("/ls/a/{number}")]),
            data: b"",
        });
        table.apply(LogIndex(2 * number), &acquire, &mut Vec::new());
    }
    assert_eq!(table.locks_len() as u64, sessions);
    table
}

/// All of them release their locks.
fn release_all(table: &mut Table, sessions: u64) {
    for number in 1..=sessions {
        let release = Command::Release {
            mutation: Mutation {
                session: SessionId(2 * number - 1),
                request_id: RequestId(2),
                seen: Rows::Slice(&[]),
            },
            acquire_id: RequestId(1),
            name: &format!("/ls/a/{number}"),
            token: FencingToken(2 * number),
        };
        table.apply(LogIndex(2 * sessions + number), &release, &mut Vec::new());
    }
    assert_eq!(table.locks_len(), 0);
}

/// How many parts it takes until nothing is left.
fn parts(mut free: impl FnMut() -> bool) -> usize {
    1 + std::iter::from_fn(|| free().then_some(())).count()
}

#[test]
fn a_table_that_was_replaced_is_freed_in_small_parts() {
    let mut table = holding(5_000);
    let parts = parts(|| table.free_part());
    assert!(parts > 5_000 / 1_024, "{parts} parts");
    assert_eq!(table.locks_from("").count(), 0);
}

#[test]
fn what_was_loaded_of_a_snapshot_that_never_came_to_its_end_is_freed_in_small_parts() {
    // An entry takes little away, so that most of those that have ended are left.
    let mut table = holding_under(few(), 5_000);
    let sessions: Vec<SessionId> = (1..=5_000).map(|number| SessionId(2 * number - 1)).collect();
    for (batch, index) in sessions.chunks(1_000).zip(10_001..) {
        let end = Command::EndSessions { reason: EndReason::Expired, sessions: Rows::Slice(batch) };
        table.apply(LogIndex(index), &end, &mut Vec::new());
    }
    let bytes = snapshot(&mut table);
    let mut loader = TableLoader::new(few());
    loader.push(&bytes[..bytes.len() / 2]).unwrap();
    let mut ended_len = loader.ended_len();
    assert!(ended_len > 2 * 1_024, "{ended_len} sessions that ended");
    while loader.free_part() {
        assert!(ended_len - loader.ended_len() <= 1_024);
        ended_len = loader.ended_len();
    }
    assert_eq!(loader.ended_len(), 0);
}

#[test]
fn what_was_copied_for_a_snapshot_that_is_given_up_is_freed_in_small_parts() {
    let mut table = holding(20_000);
    table.begin_snapshot();
    release_all(&mut table, 20_000);
    assert!(!table.has_remains());
    table.abandon_snapshot();
    assert!(table.has_remains());
    let parts = parts(|| table.free_some());
    assert!(parts > 20_000 / 1_024, "{parts} parts");
    assert!(!table.has_remains());
}

#[test]
fn a_snapshot_into_which_all_copies_went_leaves_nothing_behind_for_long() {
    let mut table = holding(20_000);
    table.begin_snapshot();
    release_all(&mut table, 20_000);
    let mut bytes = Vec::new();
    while !write_slice(&mut table, &mut bytes, 128 * 1024) {}
    let parts = parts(|| table.free_some());
    assert!(parts <= 2, "{parts} parts are left");
    let loaded = load(Limits::default(), &bytes).expect("a snapshot loads");
    assert_eq!((loaded.applied(), loaded.locks_len()), (LogIndex(40_000), 20_000));
}

/// The next slice, which has just this length unless it is the last. Tells whether it is.
fn write_slice(table: &mut Table, out: &mut Vec<u8>, bytes: usize) -> bool {
    let before = out.len();
    let is_end = table.write_snapshot(out, bytes);
    let written = out.len() - before;
    assert!(written == bytes || is_end && written < bytes, "{written} bytes of {bytes}");
    assert_eq!(table.is_snapshot_under_way(), !is_end, "it is over with its end");
    is_end
}

/// Entries may do little, so that there is always something left to be reaped and promoted.
fn few() -> Limits {
    Limits { transitions_per_entry_max: 4, ..Limits::default() }
}

fn members(ids: &[u16]) -> Membership {
    let life = |id: &u16| MemberIncarnation { node: NodeId(*id), incarnation: Incarnation([0xaa; 16]) };
    Membership::of_birth(&ids.iter().map(life).collect::<Vec<_>>())
}

#[test]
fn members_that_change_while_a_snapshot_is_written_are_not_in_it() {
    let mut script = everything();
    let mut bytes = Vec::new();
    script.table.begin_snapshot();
    script.table.set_members(members(&[1, 4, 5]));
    assert!(script.table.write_snapshot(&mut bytes, usize::MAX));
    assert_eq!(load(few(), &bytes).unwrap().members(), Some(&members(&[1, 4])));
    assert_eq!(script.table.digest(), script.table.recomputed_digest());
}

/// A table with something of everything: holds of one and of several acquires, lines, gaps, outcomes of every kind, an
/// ended session and a mark.
fn everything() -> Script {
    let mut script = Script::new(few());
    script.lines(
        "
        open A ttl=9000
        open B ttl=9000
        open C ttl=9000
        open D ttl=9000
        A acquire 1 job x owner=1 data=first
        B acquire 1 job s wait=9 owner=1 data=second
        B acquire 4 job s wait=9 owner=2
        C acquire 1 job s wait=9 owner=1
        C acquire 2 job s wait=9 owner=2
        C acquire 3 job s wait=9 owner=3
        C acquire 4 job x wait=9 owner=4
        C acquire 5 job x wait=9 owner=5
        timeout C 4
        C cancel 6 of=5
        B acquire 5 lent s owner=7 re
        B acquire 6 lent s owner=7 re seen=5
        B acquire 7 lent x owner=7
        B acquire 8 lost x owner=8
        B release 9 of=8 lost token=18
        B release 10 of=8 lost token=18
        silent 700 B
        A acquire 2 own x owner=2
        D acquire 1 left x owner=1
        D acquire 2 left x owner=2 wait=9
        expire A D
        ",
    );
    script.table.set_members(members(&[1, 4]));
    assert!(script.table.needs_reaping() && !script.table.marks.is_empty());
    script
}

/// The items of a snapshot, each with its length.
fn items(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut items = Vec::new();
    while let Some(length) = bytes.first_chunk() {
        let (item, rest) = bytes.split_at(4 + u32::from_le_bytes(*length) as usize);
        items.push(item);
        bytes = rest;
    }
    items
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn slices_between_entries_give_the_state_at_the_beginning(
        limits in limits(),
        before in prop::collection::vec(step(), 0..100),
        meanwhile in prop::collection::vec((step(), 0usize..120), 1..100),
        last_slices in prop::collection::vec(1usize..400, 1..8),
        is_restored in any::<bool>(),
    ) {
        let mut run = Run::new(limits);
        if is_restored {
            run.restore();
        }
        (0..5).for_each(|nonce| run.step(&Step::Open { nonce }));
        before.iter().for_each(|step| run.step(step));
        let undisturbed = snapshot(&mut run.table.clone());
        let at = run.log.len();

        run.table.begin_snapshot();
        let (mut bytes, mut is_end) = (Vec::new(), false);
        for (step, slice) in &meanwhile {
            run.step(step);
            is_end = is_end || write_slice(&mut run.table, &mut bytes, *slice);
        }
        let mut slices = last_slices.iter().cycle();
        while !is_end {
            is_end = write_slice(&mut run.table, &mut bytes, *slices.next().expect("a cycle has no end"));
        }
        prop_assert!(bytes == undisturbed, "the bytes are those of the state at the beginning");

        let mut loaded = load(limits, &bytes).expect("a snapshot loads");
        assert_coherent(&loaded);
        prop_assert!(snapshot(&mut loaded) == bytes, "a loaded table gives the bytes that it came of");
        for applied in &run.log[at..] {
            let command = Command::decode(&applied.payload).expect("the log decodes");
            let mut outcomes = Vec::new();
            loaded.apply(loaded.applied().next(), &command, &mut outcomes);
            prop_assert_eq!(&outcomes, &applied.outcomes, "what an entry tells goes by the state alone");
            prop_assert_eq!(loaded.digest(), applied.digest);
        }
        prop_assert_eq!(loaded.revision(), run.table.revision());
        prop_assert!(
            snapshot(&mut loaded) == snapshot(&mut run.table),
            "a state gives the same bytes however it was reached"
        );
    }

    #[test]
    fn a_snapshot_loads_however_it_is_cut(
        limits in limits(),
        steps in prop::collection::vec(step(), 0..100),
        cuts in prop::collection::vec(0usize..90, 1..20),
    ) {
        let mut run = Run::new(limits);
        (0..5).for_each(|nonce| run.step(&Step::Open { nonce }));
        steps.iter().for_each(|step| run.step(step));
        let bytes = snapshot(&mut run.table);
        let mut loader = TableLoader::new(limits);
        let (mut rest, mut cuts) = (&bytes[..], cuts.iter().chain(&[1]).cycle());
        while !rest.is_empty() {
            let cut = *cuts.next().expect("a cycle has no end");
            let (head, tail) = rest.split_at(cut.min(rest.len()));
            loader.push(head).expect("a snapshot loads");
            rest = tail;
        }
        let loaded = loader.finish().expect("a snapshot loads");
        prop_assert_eq!(loaded.digest(), run.table.digest());
        prop_assert_eq!(loaded.revision(), run.table.revision());
    }

    #[test]
    fn random_bytes_are_no_snapshot(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        at in any::<prop::sample::Index>(),
    ) {
        prop_assert!(load(Limits::default(), &bytes).is_err());
        let mut everything = everything();
        let whole = snapshot(&mut everything.table);
        let at = at.index(whole.len());
        let mut damaged = whole.clone();
        damaged.splice(at..whole.len().min(at + bytes.len()), bytes);
        prop_assert!(damaged == whole || load(few(), &damaged).is_err());
    }
}

#[test]
fn the_layout_is_the_one_that_is_documented() {
    let mut script = Script::new(Limits::default());
    script.lines(
        "
        open A ttl=9000
        A acquire 2 job x owner=5 data=me
        A acquire 3 job x owner=6 wait=30
        A release 4 of=9 job token=1
        ",
    );
    script.table.set_members(members(&[2]));
    let mut shown = String::new();
    for item in items(&snapshot(&mut script.table)) {
        let bytes: Vec<String> = item.iter().map(|byte| format!("{byte:02x}")).collect();
        bytes.chunks(32).for_each(|line| shown += &format!("{}\n", line.join(" ")));
        shown += "\n";
    }
    expect![[r#"
        65 00 00 00 01 00 00 00 04 00 00 00 00 00 00 00 6f 98 92 69 79 3e 14 03 00 00 00 00 00 00 00 00
        00 00 00 00 00 00 00 00 00 40 42 0f 00 80 84 1e 00 00 04 00 00 00 40 00 00 00 04 00 00 40 00 00
        00 00 02 00 00 80 00 00 00 00 04 00 00 e8 03 00 00 60 ea 00 00 00 10 00 00 01 00 00 00 01 00 00
        00 b1 67 e6 0f 35 18 6a 0c

        1b 00 00 00 02 00 01 00 02 00 aa aa aa aa aa aa aa aa aa aa aa aa aa aa aa aa 01 00 00 00 00

        4b 00 00 00 01 00 00 00 00 00 00 00 01 00 41 28 23 00 00 41 00 00 00 00 00 00 00 00 00 00 00 00
        00 00 00 00 00 00 00 04 00 00 00 00 00 00 00 00 01 00 01 00 00 00 00 00 00 00 01 00 00 00 04 00
        00 00 00 00 00 00 4e c2 a0 c8 08 48 46 db 06

        1b 00 00 00 09 00 2f 6c 73 2f 74 2f 6a 6f 62 00 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00

        3a 00 00 00 01 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 02 00 00
        00 00 00 00 00 02 00 6d 65 01 00 00 00 02 00 00 00 00 00 00 00 c7 77 38 f8 a8 b6 2c 49 00

        33 00 00 00 01 00 00 00 00 00 00 00 06 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 44 da 97 e8
        5a 59 e5 5b 00 00 00 1e 00 00 00 01 00 00 00 03 00 00 00 00 00 00 00

    "#]]
    .assert_eq(&shown);
}

#[test]
fn what_changes_in_every_way_before_it_was_written_is_written_as_it_was() {
    let changes = expect![[r#"
        open E ttl=9000
          opened 26 ttl 9000
          reap needed
        E acquire 1 another x
          E.1 GRANTED token 27 fence 27 holders 1
          reap needed
        E acquire 2 lent x owner=1 wait=9
          E.2 QUEUED 1
          timer E.2 9
          reap needed
        B release 11 of=5 lent token=15
          B.11 OK
          reap needed
        B release 12 of=6 lent token=15 seen=6,7,8,9,10
          ended B.6 lent token 15: released
          B.12 OK
          no timer E.2
          E.2 GRANTED token 30 fence 30 holders 1
          reap needed
        returned B
          reap needed
        reap
          ended D.1 left token 23: expired
          no timer B.4
          B.4 GRANTED token 32 fence 25 holders 2
          reap needed
        reap
          no timer D.2
          no timer C.1
          C.1 GRANTED token 33 fence 25 holders 3
          reap needed
        reap
          no timer C.2
          C.2 GRANTED token 34 fence 25 holders 4
          no timer C.3
          C.3 GRANTED token 34 fence 25 holders 5
        reap
        E acquire 3 own x
          E.3 GRANTED token 36 fence 36 holders 1
        E acquire 4 lost x
          E.4 GRANTED token 37 fence 37 holders 1
        E release 5 of=4 lost token=37
          ended E.4 lost token 37: released
          E.5 OK
        close C
          gone C: closed, released 3 ["job", "job", "job"]
          ended C.1 job token 33: closed
          ended C.2 job token 34: closed
          reap needed
        reap
          ended C.3 job token 34: closed
        reap
        reap
    "#]];
    let undisturbed = snapshot(&mut everything().table);
    for slice in 0..undisturbed.len() {
        let mut script = everything();
        let (unchanged, mut bytes) = (script.trace.len(), Vec::new());
        script.table.begin_snapshot();
        write_slice(&mut script.table, &mut bytes, slice);
        script.lines(
            "
            open E ttl=9000
            E acquire 1 another x
            E acquire 2 lent x owner=1 wait=9
            B release 11 of=5 lent token=15
            B release 12 of=6 lent token=15 seen=6,7,8,9,10
            returned B
            reap
            reap
            reap
            reap
            E acquire 3 own x
            E acquire 4 lost x
            E release 5 of=4 lost token=37
            close C
            reap
            reap
            reap
            ",
        );
        while !write_slice(&mut script.table, &mut bytes, 7) {}
        assert!(bytes == undisturbed, "changed behind {slice} bytes");
        if slice == 0 {
            changes.assert_eq(&script.trace[unchanged..]);
        }
    }
}

#[test]
fn a_grant_that_is_seen_meanwhile_was_not_seen() {
    let mut script = Script::new(few());
    script.lines("open A ttl=9000\nA acquire 1 job x");
    let undisturbed = snapshot(&mut script.table);
    script.table.begin_snapshot();
    script.lines("A acquire 2 another x seen=1");
    let mut bytes = Vec::new();
    assert!(write_slice(&mut script.table, &mut bytes, usize::MAX));
    assert!(bytes == undisturbed);
    assert!(snapshot(&mut script.table) != undisturbed);
}

#[test]
fn copies_are_held_only_until_they_are_written() {
    let mut script = everything();
    let table_copies = |script: &Script| script.table.snapshot_copies_len();
    script.table.begin_snapshot();
    script.lines("B release 11 of=5 lent token=15");
    assert_eq!(table_copies(&script), Some(2), "a session and a lock");
    script.lines("B release 12 of=6 lent token=15");
    assert_eq!(table_copies(&script), Some(2), "each was copied once");
    let mut bytes = Vec::new();
    while script.table.is_snapshot_under_way() && table_copies(&script) > Some(0) {
        write_slice(&mut script.table, &mut bytes, 1);
    }
    assert!(script.table.is_snapshot_under_way(), "the locks behind it are still to come");
    script.lines("B acquire 13 late x");
    assert_eq!(table_copies(&script), Some(0), "what was written is not copied, nor what is younger");
    while !write_slice(&mut script.table, &mut bytes, 100) {}
    assert_eq!(table_copies(&script), None);
}

#[test]
fn an_abandoned_snapshot_leaves_no_trace_in_the_next() {
    let mut script = everything();
    script.table.begin_snapshot();
    write_slice(&mut script.table, &mut Vec::new(), 300);
    script.lines("B acquire 11 new x\nB release 12 of=5 lent token=15");
    script.table.abandon_snapshot();
    assert!(!script.table.is_snapshot_under_way());
    let bytes = snapshot(&mut script.table);
    let loaded = load(few(), &bytes).expect("a snapshot loads");
    assert_eq!(loaded.digest(), script.table.digest());
    assert_eq!(loaded.lock("/ls/t/new").holders().count(), 1);
}

#[test]
#[should_panic(expected = "one snapshot is taken at a time")]
fn two_snapshots_at_once_are_not_taken() {
    let mut table = Table::new(Default::default(), Limits::default());
    table.begin_snapshot();
    table.begin_snapshot();
}

#[test]
fn what_was_acquired_and_released_leaves_nothing_behind() {
    let mut script = Script::new(Limits::default());
    script.lines("open A ttl=9000\nA acquire 1 job x");
    let before = snapshot(&mut script.table);
    script.lines("open B ttl=9000");
    for number in 0..12_345 {
        let (acquire, release, seen) = (2 * number + 1, 2 * number + 2, 2 * number);
        let token = 4 + 2 * number;
        script.lines(&format!("B acquire {acquire} {number} x seen={seen}"));
        script.lines(&format!("B release {release} of={acquire} {number} token={token} seen={acquire}"));
    }
    script.lines("close B");
    assert_eq!((script.table.locks_len(), script.table.sessions_len()), (1, 1));
    let after = snapshot(&mut script.table);
    let (before, after) = (items(&before), items(&after));
    assert_ne!(before[0], after[0], "the header has other numbers");
    assert_eq!(before[1..], after[1..]);
}

#[test]
fn every_truncated_or_extended_snapshot_is_refused() {
    let bytes = snapshot(&mut everything().table);
    assert!(load(few(), &bytes).is_ok());
    for len in 0..bytes.len() {
        let mut loader = TableLoader::new(few());
        assert_eq!(loader.push(&bytes[..len]), Ok(()), "nothing is wrong with the first {len} bytes");
        assert_eq!(loader.finish().err(), Some(SnapshotError::Incomplete), "{len} of {}", bytes.len());
    }
    for more in 1..10 {
        let extended = [&bytes[..], &vec![0; more]].concat();
        assert_eq!(load(few(), &extended).err(), Some(SnapshotError::Trailing));
    }
}

#[test]
fn every_flipped_bit_and_every_item_out_of_its_place_is_refused() {
    let bytes = snapshot(&mut everything().table);
    let mut contradicted = BTreeSet::new();
    let mut refuse = |damaged: &[u8], what: &str| {
        let error = load(few(), damaged).err().unwrap_or_else(|| panic!("{what} is not refused"));
        if let SnapshotError::Contradiction(field) = error {
            contradicted.insert(field);
        }
    };
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        refuse(&flipped, &format!("bit {} of byte {}", bit % 8, bit / 8));
    }
    let items = items(&bytes);
    for at in 0..items.len() {
        let twice = [&items[..=at], &items[at..]].concat();
        refuse(&twice.concat(), &format!("item {at} twice"));
        let mut without = items.clone();
        without.remove(at);
        refuse(&without.concat(), &format!("without item {at}"));
    }
    let contradicted: Vec<&str> = contradicted.into_iter().collect();
    expect!["acquire_id acquires fence gaps highest holds mark name nonce outcomes reap_place session silence_ms since token"].assert_eq(&contradicted.join(" "));
}

#[test]
fn more_records_than_the_limits_allow_are_refused_before_the_first() {
    let limits = Limits { sessions_max: 4, locks_max: 6, ..few() };
    let mut script = everything();
    script.table.limits = limits;
    let bytes = snapshot(&mut script.table);
    let header = items(&bytes)[0];
    let counts = header.len() - 16;
    for (at, field) in [(counts, "sessions"), (counts + 4, "locks")] {
        let mut header = header.to_vec();
        header[at] = 7;
        let check = digest::bytes(&header[4..counts + 8]);
        header[counts + 8..].copy_from_slice(&check.to_le_bytes());
        let mut loader = TableLoader::new(limits);
        assert_eq!(loader.push(&header), Err(SnapshotError::Contradiction(field)));
    }
}

#[test]
fn a_restored_cell_begins_alike_whatever_was_in_the_old_one() {
    let full = everything();
    let mut empty = Table::new(Epoch(0), few());
    empty.advance(full.table.applied());
    let bytes = [&full.table, &empty].map(|table| snapshot(&mut table.restored(Epoch(1)).unwrap()));
    assert!(bytes[0] == bytes[1], "members that are restored alike have the same bytes");
    let loaded = load(few(), &bytes[0]).expect("a snapshot loads");
    assert!(loaded.is_quiet() && loaded.members().is_none());
    assert_eq!((loaded.sessions_len(), loaded.locks_len(), loaded.epoch()), (0, 0, Epoch(1)));
}

#[test]
fn a_quiet_cell_in_which_somebody_holds_something_is_refused() {
    let mut script = Script::new(Limits::default());
    script.lines("open A\nA acquire 1 job x");
    let mut bytes = snapshot(&mut script.table);
    let header = items(&bytes)[0].len();
    bytes[4 + 36] = 1;
    let check = digest::bytes(&bytes[4..header - 8]);
    bytes[header - 8..header].copy_from_slice(&check.to_le_bytes());
    assert_eq!(load(Limits::default(), &bytes).err(), Some(SnapshotError::Contradiction("quiet")));
}

#[test]
fn a_loader_that_has_failed_fails_alike_for_ever() {
    let mut bytes = snapshot(&mut everything().table);
    bytes[4] ^= 2;
    let mut loader = TableLoader::new(few());
    let error = SnapshotError::Layout(DecodeError::UnknownLevel(3));
    assert_eq!(loader.push(&bytes), Err(error));
    assert_eq!(loader.push(&[]), Err(error));
    assert_eq!(loader.finish().err(), Some(error));
}

#[test]
fn a_snapshot_under_other_limits_is_refused() {
    let bytes = snapshot(&mut everything().table);
    assert_eq!(load(Limits::default(), &bytes).err(), Some(SnapshotError::OtherLimits));
}
