//! Scripts for the rows of docs/SEMANTICS.md.

use expect_test::{Expect, expect};

use super::script::run;
use crate::table::Limits;

fn check(script: &str, trace: Expect) {
    check_with(Limits::default(), script, trace);
}

fn check_with(limits: Limits, script: &str, trace: Expect) {
    trace.assert_eq(&run(limits, script));
}

#[test]
fn opening_is_idempotent_by_nonce_and_clamps_the_ttl() {
    check(
        "
        open A ttl=5000
        open A ttl=9000
        open B nonce=A
        open C ttl=1
        open D ttl=999999
        expire A
        open A ttl=7000
        session A
        session 1
        session 99
        session 0
        ",
        expect![[r#"
            open A ttl=5000
              opened 1 ttl 5000
            open A ttl=9000
              opened 1 ttl 5000 existing
            open B nonce=A
              refused INVALID nonce
            open C ttl=1
              opened 4 ttl 1000
            open D ttl=999999
              opened 5 ttl 60000
            expire A
              gone A: expired, released 0 []
            open A ttl=7000
              opened 7 ttl 7000
            session A
              ttl 7000 next 1
            session 1
              SESSION_EXPIRED
            session 99
              SESSION_UNKNOWN
            session 0
              SESSION_UNKNOWN
        "#]],
    );
}

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
fn a_waiter_whose_session_expired_is_passed_over_and_gets_no_token() {
    check(
        "
        open A
        open B
        open C
        A acquire 1 job x
        B acquire 1 job x wait=9000
        C acquire 1 job x wait=9000
        expire B
        A release 2 of=1 job token=4
        B acquire 1 job x wait=9000
        get job
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            open B
              opened 2 ttl 1000
            open C
              opened 3 ttl 1000
            A acquire 1 job x
              A.1 GRANTED token 4 fence 4 holders 1
            B acquire 1 job x wait=9000
              B.1 QUEUED 1
              timer B.1 9000
            C acquire 1 job x wait=9000
              C.1 QUEUED 2
              timer C.1 9000
            expire B
              gone B: expired, released 0 []
              no timer B.1
            A release 2 of=1 job token=4
              ended A.1 job token 4: released
              A.2 OK
              no timer C.1
              C.1 GRANTED token 8 fence 8 holders 1
            B acquire 1 job x wait=9000
              B.1 SESSION_EXPIRED
            get job
              exclusive C.1 owner 0 token 8 fence 8 ""
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
fn a_cancel_withdraws_its_acquire_wherever_it_is() {
    check(
        "
        open A
        open B
        A acquire 1 job x
        B acquire 1 job x wait=9
        B cancel 2 of=1
        B acquire 1 job x wait=9
        A cancel 2 of=1
        A acquire 1 job x
        get job
        B cancel 4 of=3
        B acquire 3 job x
        get job
        B cancel 4 of=3
        B cancel 5 of=4
        B cancel 6 of=6
        B cancel 6 of=0
        B cancel 6 of=99
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            open B
              opened 2 ttl 1000
            A acquire 1 job x
              A.1 GRANTED token 3 fence 3 holders 1
            B acquire 1 job x wait=9
              B.1 QUEUED 1
              timer B.1 9
            B cancel 2 of=1
              no timer B.1
              B.1 CANCELLED
              B.2 OK
            B acquire 1 job x wait=9
              B.1 CANCELLED
            A cancel 2 of=1
              ended A.1 job token 3: cancelled
              A.2 OK
            A acquire 1 job x
              A.1 LOST token 3: cancelled
            get job
              absent, floor 8
            B cancel 4 of=3
              B.4 OK
            B acquire 3 job x
              B.3 STALE_REQUEST
            get job
              absent, floor 10
            B cancel 4 of=3
              B.4 OK
            B cancel 5 of=4
              B.5 OK
            B cancel 6 of=6
              B.6 INVALID acquire_id
            B cancel 6 of=0
              B.6 INVALID acquire_id
            B cancel 6 of=99
              B.6 INVALID acquire_id
        "#]],
    );
}

#[test]
fn a_cancel_of_a_granted_acquire_grants_the_next_in_line() {
    check(
        "
        open A
        open B
        A acquire 1 job x
        B acquire 1 job x wait=9
        A cancel 2 of=1
        A acquire 1 job x seen=2
        get job
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            open B
              opened 2 ttl 1000
            A acquire 1 job x
              A.1 GRANTED token 3 fence 3 holders 1
            B acquire 1 job x wait=9
              B.1 QUEUED 1
              timer B.1 9
            A cancel 2 of=1
              ended A.1 job token 3: cancelled
              A.2 OK
              no timer B.1
              B.1 GRANTED token 5 fence 5 holders 1
            A acquire 1 job x seen=2
              A.1 LOST token 3: cancelled
            get job
              exclusive B.1 owner 0 token 5 fence 5 ""
        "#]],
    );
}

#[test]
fn retries_are_answered_as_the_first_time_and_run_once() {
    check(
        "
        open A
        open B
        A acquire 1 job x
        A acquire 1 job x wait=77
        replay A acquire 1 job x
        B acquire 1 job x wait=9
        B acquire 1 job x wait=5
        A acquire 1 other x
        B release 1 of=1 job token=3
        A release 2 of=1 job token=3
        A release 2 of=1 job token=3
        A acquire 1 job x
        replay A acquire 1 job x
        replay A acquire 3 job x
        A acquire 3 job x seen=1,2
        A acquire 1 job x
        A release 2 of=1 job token=3
        B acquire 1 job x wait=9
        get job
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            open B
              opened 2 ttl 1000
            A acquire 1 job x
              A.1 GRANTED token 3 fence 3 holders 1
            A acquire 1 job x wait=77
              A.1 GRANTED token 3 fence 3 holders 1
            replay A acquire 1 job x
              GRANTED token 3 fence 3 holders 1
            B acquire 1 job x wait=9
              B.1 QUEUED 1
              timer B.1 9
            B acquire 1 job x wait=5
              B.1 QUEUED 1
              timer B.1 5
            A acquire 1 other x
              A.1 INVALID request_id
            B release 1 of=1 job token=3
              B.1 INVALID request_id
            A release 2 of=1 job token=3
              ended A.1 job token 3: released
              A.2 OK
              no timer B.1
              B.1 GRANTED token 9 fence 9 holders 1
            A release 2 of=1 job token=3
              A.2 OK
            A acquire 1 job x
              A.1 LOST token 3: released
            replay A acquire 1 job x
              LOST token 3: released
            replay A acquire 3 job x
              new
            A acquire 3 job x seen=1,2
              A.3 TIMED_OUT
            A acquire 1 job x
              A.1 STALE_REQUEST
            A release 2 of=1 job token=3
              A.2 STALE_REQUEST
            B acquire 1 job x wait=9
              B.1 GRANTED token 9 fence 9 holders 1
            get job
              exclusive B.1 owner 0 token 9 fence 9 ""
        "#]],
    );
}

#[test]
fn a_grant_that_was_seen_leaves_no_record_behind() {
    check(
        "
        open A
        A acquire 1 job x
        A release 2 of=1 job token=2 seen=1
        A acquire 1 job x
        A acquire 3 job x seen=2
        A release 2 of=1 job token=2
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            A acquire 1 job x
              A.1 GRANTED token 2 fence 2 holders 1
            A release 2 of=1 job token=2 seen=1
              ended A.1 job token 2: released
              A.2 OK
            A acquire 1 job x
              A.1 STALE_REQUEST
            A acquire 3 job x seen=2
              A.3 GRANTED token 5 fence 5 holders 1
            A release 2 of=1 job token=2
              A.2 STALE_REQUEST
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

#[test]
fn request_ids_may_arrive_out_of_order_within_the_window() {
    check(
        "
        open A
        A acquire 3 c x
        A acquire 1 a x
        A acquire 200 d x
        A acquire 2 b x
        A acquire 136 e x
        A acquire 135 f x
        A acquire 136 e x
        A acquire 0 g x
        A acquire 9223372036854775808 g x
        A acquire 9223372036854775807 g x
        session A
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            A acquire 3 c x
              A.3 GRANTED token 2 fence 2 holders 1
            A acquire 1 a x
              A.1 GRANTED token 3 fence 3 holders 1
            A acquire 200 d x
              A.200 GRANTED token 4 fence 4 holders 1
            A acquire 2 b x
              A.2 STALE_REQUEST
            A acquire 136 e x
              A.136 GRANTED token 6 fence 6 holders 1
            A acquire 135 f x
              A.135 STALE_REQUEST
            A acquire 136 e x
              A.136 GRANTED token 6 fence 6 holders 1
            A acquire 0 g x
              A.0 INVALID request_id
            A acquire 9223372036854775808 g x
              A.9223372036854775808 INVALID request_id
            A acquire 9223372036854775807 g x
              A.9223372036854775807 GRANTED token 11 fence 11 holders 1
            session A
              ttl 1000 next 9223372036854775808
              1 /ls/t/a exclusive 3
              3 /ls/t/c exclusive 2
              136 /ls/t/e exclusive 6
              200 /ls/t/d exclusive 4
              9223372036854775807 /ls/t/g exclusive 11
        "#]],
    );
}

#[test]
fn ended_sessions_answer_nothing_and_hold_nothing() {
    check(
        "
        open A
        open B
        A acquire 1 job x
        A acquire 2 s s
        B acquire 1 s s
        B acquire 2 job x wait=9
        close A
        A release 3 of=1 job token=3
        timeout A 1
        close A
        get job
        get s
        99 acquire 1 job x
        0 acquire 1 job x
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            open B
              opened 2 ttl 1000
            A acquire 1 job x
              A.1 GRANTED token 3 fence 3 holders 1
            A acquire 2 s s
              A.2 GRANTED token 4 fence 4 holders 1
            B acquire 1 s s
              B.1 GRANTED token 5 fence 4 holders 2
            B acquire 2 job x wait=9
              B.2 QUEUED 1
              timer B.2 9
            close A
              gone A: closed, released 2 ["job", "s"]
              ended A.1 job token 3: closed
              ended A.2 s token 4: closed
              no timer B.2
              B.2 GRANTED token 7 fence 7 holders 1
            A release 3 of=1 job token=3
              A.3 SESSION_EXPIRED
            timeout A 1
            close A
            get job
              exclusive B.2 owner 0 token 7 fence 7 ""
            get s
              shared B.1 owner 0 token 5 fence 4 ""
            99 acquire 1 job x
              99.1 SESSION_UNKNOWN
            0 acquire 1 job x
              0.1 SESSION_UNKNOWN
        "#]],
    );
}

#[test]
fn a_mass_expiry_is_reaped_in_slices_and_vacates_at_once() {
    let limits = Limits { transitions_per_entry_max: 4, ..Limits::default() };
    check_with(
        limits,
        "
        open A
        open B
        open C
        A acquire 1 a x
        A acquire 2 b x
        B acquire 1 a x wait=9
        B acquire 2 c x
        C acquire 1 a x wait=9
        C acquire 2 b x wait=9
        C acquire 3 d x
        expire A B
        get a
        get b
        C acquire 4 c x
        C acquire 5 a x owner=5 wait=9
        reap
        reap
        reap
        reap
        reap
        get a
        get b
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            open B
              opened 2 ttl 1000
            open C
              opened 3 ttl 1000
            A acquire 1 a x
              A.1 GRANTED token 4 fence 4 holders 1
            A acquire 2 b x
              A.2 GRANTED token 5 fence 5 holders 1
            B acquire 1 a x wait=9
              B.1 QUEUED 1
              timer B.1 9
            B acquire 2 c x
              B.2 GRANTED token 7 fence 7 holders 1
            C acquire 1 a x wait=9
              C.1 QUEUED 2
              timer C.1 9
            C acquire 2 b x wait=9
              C.2 QUEUED 1
              timer C.2 9
            C acquire 3 d x
              C.3 GRANTED token 10 fence 10 holders 1
            expire A B
              gone A: expired, released 0 []
              gone B: expired, released 0 []
              ended A.1 a token 4: expired
              ended A.2 b token 5: expired
              no timer B.1
              reap needed
            get a
              vacant, floor 11
              waits 1: C.1 exclusive
            get b
              vacant, floor 11
              waits 1: C.2 exclusive
            C acquire 4 c x
              C.4 GRANTED token 12 fence 12 holders 1
              reap needed
            C acquire 5 a x owner=5 wait=9
              C.5 QUEUED 2
              timer C.5 9
              reap needed
            reap
              ended B.2 c token 7: expired
              no timer C.1
              C.1 GRANTED token 14 fence 14 holders 1
              reap needed
            reap
              no timer C.2
              C.2 GRANTED token 15 fence 15 holders 1
            reap
            reap
            reap
            get a
              exclusive C.1 owner 0 token 14 fence 14 ""
              waits 1: C.5 exclusive
            get b
              exclusive C.2 owner 0 token 15 fence 15 ""
        "#]],
    );
}

#[test]
fn a_promotion_over_the_bound_is_marked_and_continued() {
    let limits = Limits { transitions_per_entry_max: 4, ..Limits::default() };
    check_with(
        limits,
        "
        open W
        open R
        W acquire 1 job x
        R acquire 1 job s wait=9 owner=1
        R acquire 2 job s wait=9 owner=2
        R acquire 3 job s wait=9 owner=3
        R acquire 4 job s wait=9 owner=4
        R acquire 5 job s wait=9 owner=5
        R acquire 6 job s wait=9 owner=6
        W release 2 of=1 job token=3
        R acquire 7 job s owner=7
        reap
        get job
        ",
        expect![[r#"
            open W
              opened 1 ttl 1000
            open R
              opened 2 ttl 1000
            W acquire 1 job x
              W.1 GRANTED token 3 fence 3 holders 1
            R acquire 1 job s wait=9 owner=1
              R.1 QUEUED 1
              timer R.1 9
            R acquire 2 job s wait=9 owner=2
              R.2 QUEUED 2
              timer R.2 9
            R acquire 3 job s wait=9 owner=3
              R.3 QUEUED 3
              timer R.3 9
            R acquire 4 job s wait=9 owner=4
              R.4 QUEUED 4
              timer R.4 9
            R acquire 5 job s wait=9 owner=5
              R.5 QUEUED 5
              timer R.5 9
            R acquire 6 job s wait=9 owner=6
              R.6 QUEUED 6
              timer R.6 9
            W release 2 of=1 job token=3
              ended W.1 job token 3: released
              W.2 OK
              no timer R.1
              R.1 GRANTED token 10 fence 10 holders 1
              no timer R.2
              R.2 GRANTED token 10 fence 10 holders 2
              no timer R.3
              R.3 GRANTED token 10 fence 10 holders 3
              no timer R.4
              R.4 GRANTED token 10 fence 10 holders 4
              reap needed
            R acquire 7 job s owner=7
              R.7 TIMED_OUT
              reap needed
            reap
              no timer R.5
              R.5 GRANTED token 12 fence 10 holders 5
              no timer R.6
              R.6 GRANTED token 12 fence 10 holders 6
            get job
              shared R.1 owner 1 token 10 fence 10 ""
              shared R.2 owner 2 token 10 fence 10 ""
              shared R.3 owner 3 token 10 fence 10 ""
              shared R.4 owner 4 token 10 fence 10 ""
              shared R.5 owner 5 token 12 fence 10 ""
              shared R.6 owner 6 token 12 fence 10 ""
        "#]],
    );
}

#[test]
fn limits_refuse_by_name_and_change_nothing() {
    let limits = Limits {
        sessions_max: 2,
        locks_max: 2,
        holders_per_lock_max: 2,
        waiters_per_lock_max: 1,
        locks_per_session_max: 3,
        acquires_per_hold_max: 2,
        name_bytes_max: 10,
        client_id_bytes_max: 3,
        data_bytes_max: 4,
        ..Limits::default()
    };
    check_with(
        limits,
        "
        open A
        open LONG
        open B
        open C
        A acquire 1 toolong x
        A acquire 1 a x data=12345
        A acquire 1 a x permits=1
        A acquire 1 a x delay=1
        A acquire 1 a x max_hold=1
        A acquire 1 a s owner=1
        A acquire 2 a s owner=1 re
        A acquire 3 a s owner=1 re
        B acquire 1 a s
        A acquire 3 a s owner=3
        B acquire 2 b x
        A acquire 3 c x
        B acquire 3 a x owner=2 wait=9
        A acquire 3 a x owner=2 wait=9
        B acquire 4 b x owner=2 wait=9
        ",
        expect![[r#"
            open A
              opened 1 ttl 1000
            open LONG
              refused LIMIT client_id_bytes
            open B
              opened 3 ttl 1000
            open C
              refused LIMIT sessions
            A acquire 1 toolong x
              A.1 LIMIT name_bytes
            A acquire 1 a x data=12345
              A.1 LIMIT data_bytes
            A acquire 1 a x permits=1
              A.1 UNSUPPORTED permits
            A acquire 1 a x delay=1
              A.1 UNSUPPORTED lock_delay_ms
            A acquire 1 a x max_hold=1
              A.1 UNSUPPORTED max_hold_ms
            A acquire 1 a s owner=1
              A.1 GRANTED token 10 fence 10 holders 1
            A acquire 2 a s owner=1 re
              A.2 GRANTED token 10 fence 10 holders 1
            A acquire 3 a s owner=1 re
              A.3 LIMIT acquires_per_hold
            B acquire 1 a s
              B.1 GRANTED token 13 fence 10 holders 2
            A acquire 3 a s owner=3
              A.3 LIMIT holders_per_lock
            B acquire 2 b x
              B.2 GRANTED token 15 fence 15 holders 1
            A acquire 3 c x
              A.3 LIMIT locks
            B acquire 3 a x owner=2 wait=9
              B.3 QUEUED 1
              timer B.3 9
            A acquire 3 a x owner=2 wait=9
              A.3 LIMIT waiters_per_lock
            B acquire 4 b x owner=2 wait=9
              B.4 LIMIT locks_per_session
        "#]],
    );
}

#[test]
fn outcomes_that_nobody_acknowledges_stop_acquires_but_never_releases() {
    let mut script = String::from("open A\nopen B\nB acquire 1 busy x\nA acquire 1 mine x\n");
    for id in 2..=64 {
        script += &format!("A acquire {id} busy x\n");
    }
    script += "A acquire 65 busy x
        A release 65 of=1 mine token=9
        A release 66 of=1 mine token=4
        A release 66 of=1 mine token=4
        A release 65 of=1 mine token=9
        A acquire 67 busy x seen=1,66
        A acquire 67 busy x
        A acquire 68 busy x seen=2
        ";
    let trace = run(Limits::default(), &script);
    let tail = trace.find("A acquire 65").expect("the trace has the line");
    expect![[r#"
        A acquire 65 busy x
          A.65 LIMIT unseen_outcomes
        A release 65 of=1 mine token=9
          A.65 STALE_TOKEN
        A release 66 of=1 mine token=4
          ended A.1 mine token 4: released
          A.66 OK
        A release 66 of=1 mine token=4
          A.66 OK
        A release 65 of=1 mine token=9
          A.65 STALE_REQUEST
        A acquire 67 busy x seen=1,66
          A.67 TIMED_OUT
        A acquire 67 busy x
          A.67 TIMED_OUT
        A acquire 68 busy x seen=2
          A.68 TIMED_OUT
    "#]]
    .assert_eq(&trace[tail..]);
}
