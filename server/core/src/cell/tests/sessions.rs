//! Sessions: opened, attached, kept alive, closed.

use expect_test::expect;
use lockstep_wire::request::Request;

use super::asking::{acquire, open};
use super::rig::Rig;

#[test]
fn a_session_is_opened_once_attached_anywhere_and_closed_once() {
    let mut rig = Rig::serving(1);
    let (a, b) = (rig.connect(1), rig.connect(1));
    rig.ask(a, open(1, 5_000));
    rig.ask(a, open(1, 5_000));
    let session = lockstep_wire::SessionId(2);
    rig.beat(a, session);
    rig.beat(b, session);
    rig.advance(10);
    rig.say_attach(b, session, 2);
    rig.say_attach(b, session, 1);
    rig.settle();
    rig.beat(a, session);
    rig.advance(10);
    rig.ask(b, acquire(session, 1, &["/ls/a/b"], 0));
    rig.ask(b, Request::CloseSession { session });
    rig.ask(b, Request::CloseSession { session });
    rig.advance(10);
    expect![[r#"
        OK session 2 ttl 5000 next 1
        OK session 2 ttl 5000 next 1
        alive: 2 OK
        alive: 2 NOT_ATTACHED"#]]
    .assert_eq(&rig.told(a).join("\n"));
    expect![[r#"
        alive: 2 NOT_ATTACHED
        attached: 2 DENIED
        attached: 2 OK ttl 5000 next 1
        OK token 4 holders 1
        OK released 1
        SESSION_EXPIRED"#]]
    .assert_eq(&rig.told(b).join("\n"));
    assert_eq!(rig.unanswered(), 0);
}
