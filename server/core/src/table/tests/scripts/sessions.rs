//! Scripts for the rows of docs/SEMANTICS.md: how sessions begin and end.

use expect_test::expect;

use super::{check, check_with};
use crate::table::Limits;

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
fn silence_adds_up_to_the_ttl_at_most_and_only_a_return_or_an_open_ends_it() {
    check(
        "
        open A ttl=2000
        open B ttl=5000
        A acquire 1 job x
        silent 700 A B A
        session A
        silent 700 A
        session A
        silent 4294967295 B
        session B
        A acquire 2 other x
        session A
        returned A 99
        session A
        silent 300 A
        open C nonce=A
        session A
        open A ttl=2000
        session A
        expire B
        silent 300 B 99
        returned B
        session B
        ",
        expect![[r#"
            open A ttl=2000
              opened 1 ttl 2000
            open B ttl=5000
              opened 2 ttl 5000
            A acquire 1 job x
              A.1 GRANTED token 3 fence 3 holders 1
            silent 700 A B A
            session A
              ttl 2000 next 2 silent for 1400
              1 /ls/t/job exclusive 3
            silent 700 A
            session A
              ttl 2000 next 2 silent for 2000
              1 /ls/t/job exclusive 3
            silent 4294967295 B
            session B
              ttl 5000 next 1 silent for 5000
            A acquire 2 other x
              A.2 GRANTED token 7 fence 7 holders 1
            session A
              ttl 2000 next 3 silent for 2000
              1 /ls/t/job exclusive 3
              2 /ls/t/other exclusive 7
            returned A 99
            session A
              ttl 2000 next 3
              1 /ls/t/job exclusive 3
              2 /ls/t/other exclusive 7
            silent 300 A
            open C nonce=A
              refused INVALID nonce
            session A
              ttl 2000 next 3 silent for 300
              1 /ls/t/job exclusive 3
              2 /ls/t/other exclusive 7
            open A ttl=2000
              opened 1 ttl 2000 existing
            session A
              ttl 2000 next 3
              1 /ls/t/job exclusive 3
              2 /ls/t/other exclusive 7
            expire B
              gone B: expired, released 0 []
            silent 300 B 99
            returned B
            session B
              SESSION_EXPIRED
        "#]],
    );
}
