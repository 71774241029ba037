//! Scripts for the rows of docs/SEMANTICS.md: a cell that was restored from a backup, and its quiet time.

use expect_test::expect;

use super::{check, check_with};
use crate::table::Limits;

#[test]
fn what_was_before_is_void_and_nothing_is_granted_until_quiet_ends() {
    check(
        "
        open A
        A acquire 1 job x
        restore 1
        session A
        A release 2 of=1 job token=2
        check job 2
        get job
        open B nonce=A
        B acquire 1 job x
        get job
        B acquire 2 job x wait=9000 owner=2
        B acquire 3 job x wait=9000 owner=3
        B acquire 4 job x owner=4
        reap
        end-quiet
        reap
        get job
        end-quiet
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            A acquire 1 job x
              A.1 GRANTED token 2 fence 2 holders 1
            restore 1
            session A
              SESSION_EXPIRED
            A release 2 of=1 job token=2
              A.2 SESSION_EXPIRED
            check job 2
              stale, latest 0, floor 281474976710659
            get job
              absent, floor 281474976710659
            open B nonce=A
              opened 281474976710660 ttl 1000
            B acquire 1 job x
              B.1 TIMED_OUT
            get job
              absent, floor 281474976710661
            B acquire 2 job x wait=9000 owner=2
              B.2 QUEUED 1
              timer B.2 9000
            B acquire 3 job x wait=9000 owner=3
              B.3 QUEUED 2
              timer B.3 9000
            B acquire 4 job x owner=4
              B.4 TIMED_OUT
            reap
            end-quiet
              reap needed
            reap
              no timer B.2
              B.2 GRANTED token 281474976710667 fence 281474976710667 holders 1
            get job
              exclusive B.2 owner 2 token 281474976710667 fence 281474976710667 ""
              waits 1: B.3 exclusive
            end-quiet
        "#]],
    );
}

#[test]
fn whoever_leaves_a_line_while_the_cell_is_quiet_makes_room_for_nobody() {
    check(
        "
        open Z
        restore 7
        open A ttl=9000
        open B ttl=9000
        A acquire 1 one x wait=9000 owner=1
        A acquire 2 two x wait=9000 owner=2
        B acquire 1 two s wait=9000 owner=1
        B acquire 2 two s wait=9000 owner=2
        B acquire 3 gone x wait=9000 owner=3
        A cancel 3 of=2
        timeout B 3
        get gone
        expire A
        get one
        end-quiet
        B acquire 4 two x wait=9000 owner=4
        reap
        get two
        ",
        expect![[r#"
            open Z
              opened 1 ttl 1000
            restore 7
            open A ttl=9000
              opened 1970324836974594 ttl 9000
            open B ttl=9000
              opened 1970324836974595 ttl 9000
            A acquire 1 one x wait=9000 owner=1
              A.1 QUEUED 1
              timer A.1 9000
            A acquire 2 two x wait=9000 owner=2
              A.2 QUEUED 1
              timer A.2 9000
            B acquire 1 two s wait=9000 owner=1
              B.1 QUEUED 2
              timer B.1 9000
            B acquire 2 two s wait=9000 owner=2
              B.2 QUEUED 3
              timer B.2 9000
            B acquire 3 gone x wait=9000 owner=3
              B.3 QUEUED 1
              timer B.3 9000
            A cancel 3 of=2
              no timer A.2
              A.2 CANCELLED
              A.3 OK
            timeout B 3
              no timer B.3
              B.3 TIMED_OUT
            get gone
              absent, floor 1970324836974602
            expire A
              gone A: expired, released 0 []
              no timer A.1
            get one
              absent, floor 1970324836974603
            end-quiet
              reap needed
            B acquire 4 two x wait=9000 owner=4
              B.4 QUEUED 3
              timer B.4 9000
              reap needed
            reap
              no timer B.1
              B.1 GRANTED token 1970324836974606 fence 1970324836974606 holders 1
              no timer B.2
              B.2 GRANTED token 1970324836974606 fence 1970324836974606 holders 2
            get two
              shared B.1 owner 1 token 1970324836974606 fence 1970324836974606 ""
              shared B.2 owner 2 token 1970324836974606 fence 1970324836974606 ""
              waits 1: B.4 exclusive
        "#]],
    );
}

#[test]
fn lines_are_promoted_in_the_order_in_which_they_began_as_far_as_an_entry_goes() {
    check_with(
        Limits { transitions_per_entry_max: 4, waiters_per_lock_max: 1, ..Limits::default() },
        "
        open Z
        restore 1
        open A ttl=9000
        A acquire 1 c x wait=9000 owner=1
        A acquire 2 b x wait=9000 owner=2
        A acquire 3 a x wait=9000 owner=3
        A acquire 4 a x wait=9000 owner=4
        end-quiet
        reap
        reap
        ",
        expect![[r#"
            open Z
              opened 1 ttl 1000
            restore 1
            open A ttl=9000
              opened 281474976710658 ttl 9000
            A acquire 1 c x wait=9000 owner=1
              A.1 QUEUED 1
              timer A.1 9000
            A acquire 2 b x wait=9000 owner=2
              A.2 QUEUED 1
              timer A.2 9000
            A acquire 3 a x wait=9000 owner=3
              A.3 QUEUED 1
              timer A.3 9000
            A acquire 4 a x wait=9000 owner=4
              A.4 LIMIT waiters_per_lock
            end-quiet
              reap needed
            reap
              no timer A.1
              A.1 GRANTED token 281474976710664 fence 281474976710664 holders 1
              no timer A.2
              A.2 GRANTED token 281474976710664 fence 281474976710664 holders 1
              reap needed
            reap
              no timer A.3
              A.3 GRANTED token 281474976710665 fence 281474976710665 holders 1
        "#]],
    );
}

#[test]
fn an_epoch_that_is_not_above_the_old_one_restores_nothing() {
    check(
        "
        open A
        restore 0
        restore 32768
        session A
        restore 32767
        restore 32767
        session A
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            restore 0
              epoch 0 is not above the backup's own, which is 0
            restore 32768
              epoch 32768 is too large: 32767 is the last one
            session A
              ttl 1000 next 1
            restore 32767
            restore 32767
              epoch 32767 is not above the backup's own, which is 32767
            session A
              SESSION_EXPIRED
        "#]],
    );
}
