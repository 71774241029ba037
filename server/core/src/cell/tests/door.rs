//! Who is let in as a member, at both ends of a link.

use lockstep_wire::hello::{Hello, HelloReply, PeerIdentity, Role};
use lockstep_wire::{ClusterId, Incarnation, NodeId, Status};

use super::rig::{CELL, Rig};
use crate::hello::{Identity, Port, Unwelcome, Welcome, recognize, welcome};
use crate::table::Limits;

const CLUSTER: ClusterId = ClusterId([7; 16]);

/// What node 1 says to whoever connects as `node` with this life.
fn at_door(rig: &Rig, node: u16, life: [u8; 16]) -> Result<Welcome, Unwelcome> {
    let us = Identity { cluster: CLUSTER, node: NodeId(1), cells: CELL.0 + 1, shards: 1 };
    let identity =
        PeerIdentity { node: NodeId(node), to: NodeId(1), shard: 0, incarnation: Incarnation(life) };
    let hello = Hello {
        protocol_min: 1,
        protocol_max: 1,
        cluster: CLUSTER,
        role: Role::PeerControl(identity),
        peer_address: "",
        credentials: b"",
    };
    welcome(&us, [rig.cell(1)], Port::Peer, CELL, &hello)
}

/// What node 1 makes of the answer of whoever it dialed as node 2.
fn dialed(rig: &Rig, node: u16, life: [u8; 16], status: Status) -> Result<(), String> {
    let reply = HelloReply {
        status,
        detail: if status == Status::Ok { "" } else { "not here" },
        protocol: 1,
        node: NodeId(node),
        cluster: CLUSTER,
        incarnation: Incarnation(life),
        ttl_ms_min: 0,
        ttl_ms_max: 0,
        leader: NodeId(0),
        leader_address: "",
    };
    recognize([rig.cell(1)], NodeId(2), &reply)
}

#[test]
fn another_directory_under_a_members_id_is_let_in_at_neither_end() {
    let rig = Rig::serving(3);
    let incarnation = Incarnation([2; 16]);
    assert_eq!(at_door(&rig, 2, [2; 16]), Ok(Welcome::Peer { node: NodeId(2), incarnation, shard: 0 }));
    let unwelcome = at_door(&rig, 2, [77; 16]).expect_err("another directory");
    assert_eq!(unwelcome.status, Status::Denied);
    assert!(unwelcome.detail.contains("another directory than the member's"), "{}", unwelcome.detail);
    assert!(at_door(&rig, 9, [77; 16]).is_ok(), "nothing is known of it");

    assert_eq!(dialed(&rig, 2, [2; 16], Status::Ok), Ok(()));
    assert_eq!(dialed(&rig, 2, [77; 16], Status::Ok), Err(unwelcome.detail));
    assert_eq!(dialed(&rig, 2, [2; 16], Status::Denied), Err("not here".to_owned()));
    assert!(dialed(&rig, 3, [3; 16], Status::Ok).is_err_and(|detail| detail.starts_with("node 3 answers")));
}

#[test]
fn a_member_that_was_wiped_before_the_birth_is_told_at_the_door_what_to_do() {
    let mut rig = Rig::unstarted(3, Limits::default(), 1 << 20);
    rig.start(1);
    rig.start(2);
    let welcomed = at_door(&rig, 3, [77; 16]);
    assert!(welcomed.is_ok(), "nobody's life is known yet: {welcomed:?}");
    rig.start(3);
    assert!(at_door(&rig, 3, [77; 16]).is_err_and(|it| it.detail.contains("runs under the id of node 3")));

    let mut rig = Rig::unstarted(3, Limits::default(), 1 << 20);
    rig.hold_disk(3);
    for node in 1..=3 {
        rig.start(node);
    }
    let detail = at_door(&rig, 3, [77; 16]).expect_err("the manifest has another life").detail;
    assert!(detail.contains("is unborn") && detail.contains("format all members again"), "{detail}");
}
