//! Scripts for the rows of docs/SEMANTICS.md: retries, cancels, the request window and the limits.

use expect_test::expect;

use super::{check, check_with};
use crate::table::Limits;
use crate::table::tests::script::run;

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
