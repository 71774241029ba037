//! Scripts for the rows of docs/SEMANTICS.md: who gets a lock, and in which order.

use expect_test::expect;

use super::check;

#[test]
fn exclusive_holders_follow_each_other_in_order_of_arrival() {
    check(
        "
        open A
        open B
        open C
        A acquire 1 job x data=a
        B acquire 1 job x wait=1000
        C acquire 1 job x wait=2000
        C acquire 2 job x owner=5
        get job
        A release 2 of=1 job token=4
        get job
        B release 2 of=1 job token=8
        C release 3 of=1 job token=8
        check job 9
        check job 9 session=C
        check job 9 session=A
        C release 4 of=1 job token=9
        get job
        check job 9
        A acquire 3 job x
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            open B
              opened 2 ttl 1000
            open C
              opened 3 ttl 1000
            A acquire 1 job x data=a
              A.1 GRANTED token 4 fence 4 holders 1
            B acquire 1 job x wait=1000
              B.1 QUEUED 1
              timer B.1 1000
            C acquire 1 job x wait=2000
              C.1 QUEUED 2
              timer C.1 2000
            C acquire 2 job x owner=5
              C.2 TIMED_OUT
            get job
              exclusive A.1 owner 0 token 4 fence 4 "a"
              waits 1: B.1 exclusive
              waits 2: C.1 exclusive
            A release 2 of=1 job token=4
              ended A.1 job token 4: released
              A.2 OK
              no timer B.1
              B.1 GRANTED token 8 fence 8 holders 1
            get job
              exclusive B.1 owner 0 token 8 fence 8 ""
              waits 1: C.1 exclusive
            B release 2 of=1 job token=8
              ended B.1 job token 8: released
              B.2 OK
              no timer C.1
              C.1 GRANTED token 9 fence 9 holders 1
            C release 3 of=1 job token=8
              C.3 STALE_TOKEN
            check job 9
              current, latest 9, floor 0
            check job 9 session=C
              current, latest 9, floor 0
            check job 9 session=A
              stale, latest 9, floor 0
            C release 4 of=1 job token=9
              ended C.1 job token 9: released
              C.4 OK
            get job
              absent, floor 11
            check job 9
              stale, latest 0, floor 11
            A acquire 3 job x
              A.3 GRANTED token 12 fence 12 holders 1
        "#]],
    );
}

#[test]
fn waiters_are_granted_in_order_however_long_they_have_waited() {
    check(
        "
        open A
        open B
        open C
        open D
        A acquire 1 job x
        B acquire 1 job x wait=600000
        C acquire 1 job x wait=600000
        D acquire 1 job x wait=600000
        open F
        F acquire 1 job x wait=600000
        A release 2 of=1 job token=5
        B release 2 of=1 job token=11
        C release 2 of=1 job token=12
        D release 2 of=1 job token=13
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            open B
              opened 2 ttl 1000
            open C
              opened 3 ttl 1000
            open D
              opened 4 ttl 1000
            A acquire 1 job x
              A.1 GRANTED token 5 fence 5 holders 1
            B acquire 1 job x wait=600000
              B.1 QUEUED 1
              timer B.1 600000
            C acquire 1 job x wait=600000
              C.1 QUEUED 2
              timer C.1 600000
            D acquire 1 job x wait=600000
              D.1 QUEUED 3
              timer D.1 600000
            open F
              opened 9 ttl 1000
            F acquire 1 job x wait=600000
              F.1 QUEUED 4
              timer F.1 600000
            A release 2 of=1 job token=5
              ended A.1 job token 5: released
              A.2 OK
              no timer B.1
              B.1 GRANTED token 11 fence 11 holders 1
            B release 2 of=1 job token=11
              ended B.1 job token 11: released
              B.2 OK
              no timer C.1
              C.1 GRANTED token 12 fence 12 holders 1
            C release 2 of=1 job token=12
              ended C.1 job token 12: released
              C.2 OK
              no timer D.1
              D.1 GRANTED token 13 fence 13 holders 1
            D release 2 of=1 job token=13
              ended D.1 job token 13: released
              D.2 OK
              no timer F.1
              F.1 GRANTED token 14 fence 14 holders 1
        "#]],
    );
}

#[test]
fn sharers_behind_a_writer_are_granted_together_and_nobody_overtakes() {
    check(
        "
        open W
        open R
        open X
        W acquire 1 job x
        R acquire 1 job s wait=9 owner=1
        R acquire 2 job s wait=9 owner=2
        R acquire 3 job s wait=9 owner=3
        X acquire 1 job x wait=9
        R acquire 4 job s wait=9 owner=4
        R acquire 5 job s owner=5
        W release 2 of=1 job token=4
        get job
        R release 6 of=1 job token=11
        R release 7 of=2 job token=11
        R release 8 of=3 job token=11
        X release 2 of=1 job token=14
        get job
        R acquire 9 job s owner=9
        ",
        expect![[r#"
            open W
              opened 1 ttl 1000
            open R
              opened 2 ttl 1000
            open X
              opened 3 ttl 1000
            W acquire 1 job x
              W.1 GRANTED token 4 fence 4 holders 1
            R acquire 1 job s wait=9 owner=1
              R.1 QUEUED 1
              timer R.1 9
            R acquire 2 job s wait=9 owner=2
              R.2 QUEUED 2
              timer R.2 9
            R acquire 3 job s wait=9 owner=3
              R.3 QUEUED 3
              timer R.3 9
            X acquire 1 job x wait=9
              X.1 QUEUED 4
              timer X.1 9
            R acquire 4 job s wait=9 owner=4
              R.4 QUEUED 5
              timer R.4 9
            R acquire 5 job s owner=5
              R.5 TIMED_OUT
            W release 2 of=1 job token=4
              ended W.1 job token 4: released
              W.2 OK
              no timer R.1
              R.1 GRANTED token 11 fence 11 holders 1
              no timer R.2
              R.2 GRANTED token 11 fence 11 holders 2
              no timer R.3
              R.3 GRANTED token 11 fence 11 holders 3
            get job
              shared R.1 owner 1 token 11 fence 11 ""
              shared R.2 owner 2 token 11 fence 11 ""
              shared R.3 owner 3 token 11 fence 11 ""
              waits 1: X.1 exclusive
              waits 2: R.4 shared
            R release 6 of=1 job token=11
              ended R.1 job token 11: released
              R.6 OK
            R release 7 of=2 job token=11
              ended R.2 job token 11: released
              R.7 OK
            R release 8 of=3 job token=11
              ended R.3 job token 11: released
              R.8 OK
              no timer X.1
              X.1 GRANTED token 14 fence 14 holders 1
            X release 2 of=1 job token=14
              ended X.1 job token 14: released
              X.2 OK
              no timer R.4
              R.4 GRANTED token 15 fence 15 holders 1
            get job
              shared R.4 owner 4 token 15 fence 15 ""
            R acquire 9 job s owner=9
              R.9 GRANTED token 16 fence 15 holders 2
        "#]],
    );
}

#[test]
fn a_departure_from_the_middle_of_the_line_lets_sharers_join() {
    check(
        "
        open A
        open B
        open C
        A acquire 1 job s
        B acquire 1 job x wait=9
        C acquire 1 job s wait=9
        timeout B 1
        get job
        B acquire 2 job x wait=9
        A acquire 2 job s wait=9 owner=2
        B cancel 3 of=2
        timeout B 2
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            open B
              opened 2 ttl 1000
            open C
              opened 3 ttl 1000
            A acquire 1 job s
              A.1 GRANTED token 4 fence 4 holders 1
            B acquire 1 job x wait=9
              B.1 QUEUED 1
              timer B.1 9
            C acquire 1 job s wait=9
              C.1 QUEUED 2
              timer C.1 9
            timeout B 1
              no timer B.1
              B.1 TIMED_OUT
              no timer C.1
              C.1 GRANTED token 7 fence 4 holders 2
            get job
              shared A.1 owner 0 token 4 fence 4 ""
              shared C.1 owner 0 token 7 fence 4 ""
            B acquire 2 job x wait=9
              B.2 QUEUED 1
              timer B.2 9
            A acquire 2 job s wait=9 owner=2
              A.2 QUEUED 2
              timer A.2 9
            B cancel 3 of=2
              no timer B.2
              B.2 CANCELLED
              B.3 OK
              no timer A.2
              A.2 GRANTED token 10 fence 4 holders 3
            timeout B 2
        "#]],
    );
}

#[test]
fn names_that_begin_alike_are_unrelated_locks() {
    check(
        "
        open A
        open B
        A acquire 1 job x
        B acquire 1 job1 x
        B acquire 2 job/1 x
        B acquire 3 jöb x
        B acquire 4 jo x
        A release 2 of=1 job1 token=3
        A release 3 of=1 job token=3
        get job
        get job1
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            open B
              opened 2 ttl 1000
            A acquire 1 job x
              A.1 GRANTED token 3 fence 3 holders 1
            B acquire 1 job1 x
              B.1 GRANTED token 4 fence 4 holders 1
            B acquire 2 job/1 x
              B.2 GRANTED token 5 fence 5 holders 1
            B acquire 3 jöb x
              B.3 GRANTED token 6 fence 6 holders 1
            B acquire 4 jo x
              B.4 GRANTED token 7 fence 7 holders 1
            A release 2 of=1 job1 token=3
              A.2 STALE_TOKEN
            A release 3 of=1 job token=3
              ended A.1 job token 3: released
              A.3 OK
            get job
              absent, floor 9
            get job1
              exclusive B.1 owner 0 token 4 fence 4 ""
        "#]],
    );
}

#[test]
fn stale_releases_change_nothing() {
    check(
        "
        open A
        open B
        A acquire 1 job x
        A release 2 of=1 job token=2
        A release 3 of=9 job token=3
        A release 4 of=1 other token=3
        B release 1 of=1 job token=3
        get job
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            open B
              opened 2 ttl 1000
            A acquire 1 job x
              A.1 GRANTED token 3 fence 3 holders 1
            A release 2 of=1 job token=2
              A.2 STALE_TOKEN
            A release 3 of=9 job token=3
              A.3 STALE_TOKEN
            A release 4 of=1 other token=3
              A.4 STALE_TOKEN
            B release 1 of=1 job token=3
              B.1 STALE_TOKEN
            get job
              exclusive A.1 owner 0 token 3 fence 3 ""
        "#]],
    );
}

#[test]
fn reentrant_acquires_share_one_hold_that_ends_with_the_last() {
    check(
        "
        open A
        open B
        A acquire 1 job x owner=1
        B acquire 1 job x wait=9
        A acquire 2 job x owner=1
        A acquire 3 job x owner=1 re
        A acquire 4 job s owner=1 re
        A acquire 5 job x owner=2 wait=9
        A acquire 6 job x owner=2 wait=9
        A release 7 of=1 job token=3
        A acquire 1 job x owner=1
        get job
        A cancel 8 of=3
        get job
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            open B
              opened 2 ttl 1000
            A acquire 1 job x owner=1
              A.1 GRANTED token 3 fence 3 holders 1
            B acquire 1 job x wait=9
              B.1 QUEUED 1
              timer B.1 9
            A acquire 2 job x owner=1
              A.2 ALREADY_HELD by 1 token 3
            A acquire 3 job x owner=1 re
              A.3 GRANTED token 3 fence 3 holders 1
            A acquire 4 job s owner=1 re
              A.4 ALREADY_HELD by 1 token 3
            A acquire 5 job x owner=2 wait=9
              A.5 QUEUED 2
              timer A.5 9
            A acquire 6 job x owner=2 wait=9
              A.6 ALREADY_HELD by 5 token 0
            A release 7 of=1 job token=3
              A.7 OK
            A acquire 1 job x owner=1
              A.1 LOST token 3: released
            get job
              exclusive A.3 owner 1 token 3 fence 3 ""
              waits 1: B.1 exclusive
              waits 2: A.5 exclusive
            A cancel 8 of=3
              ended A.3 job token 3: cancelled
              A.8 OK
              no timer B.1
              B.1 GRANTED token 12 fence 12 holders 1
            get job
              exclusive B.1 owner 0 token 12 fence 12 ""
              waits 1: A.5 exclusive
        "#]],
    );
}
