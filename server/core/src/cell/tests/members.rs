//! Changes of the members that an operator asks for.

use lockstep_wire::request::Request;
use lockstep_wire::{Incarnation, MemberChange, NodeId};

use super::rig::Rig;

fn add(node: u16, client_address: &str) -> Request<'_> {
    let (node, incarnation) = (NodeId(node), Incarnation([44; 16]));
    Request::ChangeMembers(MemberChange::AddLearner {
        node,
        incarnation,
        peer_address: "node4:4700",
        client_address,
    })
}

fn serve_at(node: u16, client_address: &str) -> Request<'_> {
    let node = NodeId(node);
    Request::ChangeMembers(MemberChange::SetAddresses { node, peer_address: "other:4700", client_address })
}

#[test]
fn what_can_never_be_is_invalid_and_says_what_to_do() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let too_far =
        "node 44 would leave ids out, which could not be given later; format the node with the next one, 4";
    assert_eq!(rig.call(a, add(44, "node44:4600")), [format!("INVALID ({too_far})")]);
    // The members of the birth serve where the configuration says.
    let taken = "node 2 serves at one of the addresses of node 4 already; correct that, or move node 2 first";
    assert_eq!(rig.call(a, add(4, "node2:4600")), [format!("INVALID ({taken})")]);
    // Until they have moved.
    assert_eq!(rig.call(a, serve_at(2, "other:4600")), ["OK"]);
    assert_eq!(rig.call(a, serve_at(2, "other:4600")), ["OK"], "asked again");
    let taken = "node 2 serves at one of the addresses of node 3 already; correct that, or move node 2 first";
    assert_eq!(rig.call(a, serve_at(3, "node2:4600")), [format!("INVALID ({taken})")], "that of members");
    let last = Request::ChangeMembers(MemberChange::Remove { node: NodeId(1) });
    let mut alone = Rig::serving(1);
    let b = alone.connect(1);
    let refused = "node 1 is the last voter, and no cell can be without any; promote another one first";
    assert_eq!(alone.call(b, last), [format!("CONFLICT ({refused})")]);
}
