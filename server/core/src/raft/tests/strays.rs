//! Processes that run another directory under the id of a member.

use lockstep_wire::peer::{CellHello, PeerMessage};
use lockstep_wire::{Incarnation, MemberChange, NodeId};

use super::cluster::Cluster;
use super::membership::{SECOND, add, must_change};
use crate::Span;

/// What somebody says who has the manifest and another directory than the member under whose id it runs.
fn hello_of_a_stray(cluster: &Cluster) -> CellHello {
    let birth = cluster.raft(1).birth.id();
    CellHello { incarnation: Incarnation([77; 16]), members_hash: 0, birth, is_born: true }
}

#[test]
fn a_stray_that_spoke_before_its_list_was_committed_does_not_keep_the_member_out() {
    let mut cluster = Cluster::serving(3, 22);
    let node = add(&mut cluster);
    let leader = cluster.serving_leader().unwrap();
    let away = [1, 2, 3].map(NodeId).into_iter().find(|it| *it != leader).unwrap();
    cluster.crash(away);
    cluster.run_for(Span::from_ms(10));
    cluster.isolate(away);
    cluster.start(away);
    cluster.cut.remove(&(away, node));
    cluster.cut.remove(&(node, away));
    cluster.run_for(Span::from_ms(20));
    assert!(cluster.raft(away.0).accepts(node), "the member has said hello");
    let hello = hello_of_a_stray(&cluster);
    assert_eq!(cluster.raft(away.0).objection_to(node, hello.incarnation), None, "nothing keeps it out yet");
    cluster.step(away, |raft, now, fx| raft.on_message(node, &PeerMessage::CellHello(hello), now, fx));
    cluster.cut.clear();
    cluster.run_for(Span::from_ms(5_000));
    assert!(!cluster.raft(away.0).is_membership_changing());
    assert!(cluster.raft(away.0).accepts(node), "the member has been asked again");
    must_change(&mut cluster, &MemberChange::Promote { node });
    let leader = cluster.serving_leader().unwrap();
    cluster.step(leader, |raft, now, fx| assert!(raft.transfer(away, now, fx)));
    cluster.run_until(SECOND, "no hand-over", |cluster| cluster.serving_leader() == Some(away));
    cluster.run_for(SECOND);
    assert!(cluster.raft(away.0).accepts(node));
    assert_eq!(cluster.raft(node.0).committed(), cluster.raft(away.0).committed());
}

#[test]
fn a_late_word_of_a_stray_is_made_good_by_another_link() {
    let mut cluster = Cluster::serving(3, 23);
    let leader = cluster.serving_leader().unwrap();
    let node = [1, 2, 3].map(NodeId).into_iter().find(|it| *it != leader).unwrap();
    let hello = hello_of_a_stray(&cluster);
    cluster.step(leader, |raft, now, fx| raft.on_message(node, &PeerMessage::CellHello(hello), now, fx));
    cluster.run_for(SECOND);
    assert!(
        !cluster.raft(leader.0).accepts(node),
        "frames say ids only: whose they are is not known any more"
    );
    cluster.step(leader, |raft, now, _| raft.on_link_down(node, false, now));
    cluster.step(leader, |raft, now, fx| raft.on_link_up(node, now, fx));
    cluster.run_for(SECOND);
    assert!(cluster.raft(leader.0).accepts(node));
}
