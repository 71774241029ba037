//! `lockstep members`: who the members of each cell are, how far they have come, and changes of that.
//!
//! Invariant: a change is made cell by cell, each by its leader, and may be asked for again: what has been done already is
//! said so and is no failure. Deliberately absent: what is allowed; the core says that, to the leader of each cell and here
//! before the first of them is asked.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use lockstep_client::core::{MemberState, MemberWish, MembersInfo};
use lockstep_client::{Config, Error, change_members, members_of, status_of, transfer_leader};
use lockstep_core::{Listed, MemberObjection, Membership};
use lockstep_wire::{CellId, LogIndex, NodeId, Status};
use serde_json::{Value, json};

use super::{Cluster, complain, counted, exit, print, status};

/// How long a member that led a moment ago may take to answer.
const LEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two attempts when leadership is moving.
const AGAIN: Duration = Duration::from_millis(200);

/// Show the members of each cell and how far they have come, or change them.
#[derive(Args, Debug)]
pub(crate) struct MembersArgs {
    /// Only this cell; left out, every cell of the cluster.
    #[arg(long, value_name = "ID", global = true)]
    cell: Option<u16>,
    /// Print JSON; 64-bit numbers as strings.
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    cluster: Cluster,
    #[command(subcommand)]
    change: Option<Change>,
}

/// What is to change.
#[derive(Debug, Subcommand)]
enum Change {
    /// Add a node that runs and waits to join, as a learner: it gets the log and has no vote yet.
    Add {
        /// Where the node serves clients; it says itself who it is.
        #[arg(value_name = "HOST:PORT", value_parser = super::parse_endpoint)]
        node: String,
    },
    /// Give a learner that has caught up its vote.
    Promote {
        /// The node.
        #[arg(value_name = "ID", value_parser = clap::value_parser!(u16).range(1..))]
        node: u16,
        /// Wait for the learner to catch up for so long.
        #[arg(long, default_value = "60s", value_parser = humantime::parse_duration, value_name = "DURATION")]
        wait: Duration,
    },
    /// Take a node out, for ever; a leader hands over first.
    Remove {
        /// The node.
        #[arg(value_name = "ID", value_parser = clap::value_parser!(u16).range(1..))]
        node: u16,
    },
    /// Say where a member serves from now on, before it is started there.
    Move {
        /// The node.
        #[arg(value_name = "ID", value_parser = clap::value_parser!(u16).range(1..))]
        node: u16,
        /// Where it serves members.
        #[arg(long, value_name = "HOST:PORT", value_parser = parse_peer)]
        peer: SocketAddr,
        /// Where it serves clients.
        #[arg(long, value_name = "HOST:PORT", value_parser = super::parse_endpoint)]
        client: String,
    },
}

/// Members find each other by numbers: a name that cannot be resolved must not stop them.
fn parse_peer(text: &str) -> Result<SocketAddr, String> {
    let mut addresses = text.to_socket_addrs().map_err(|error| format!("{error}; it is host:port"))?;
    addresses.next().ok_or_else(|| "it has no address".to_owned())
}

pub(super) async fn run(args: MembersArgs) -> Result<u8, Error> {
    let Some(change) = &args.change else { return show(&args).await };
    let mut cells = cells(&args).await?;
    let wish = match wish_of(change, &args, &cells).await? {
        Ok(wish) => wish,
        Err(reason) => return Ok(give_up(&reason)),
    };
    pass_over(&mut cells, &wish);
    if let Some(objection) = leaves_out(&cells, &wish) {
        return Ok(give_up(&objection.to_string()));
    }
    for seen in &cells {
        if let Err(objection) = foresee(&seen.members, &wish) {
            return Ok(give_up(&format!("cell {}: {objection}", seen.cell)));
        }
    }
    let mut done = Vec::new();
    for seen in &cells {
        let cell = seen.cell;
        if let Err(error) = carry_out(&args, cell, change, &wish).await {
            for cell in done {
                complain(&format!("cell {cell} has made the change; ask again for the others"));
            }
            return Err(error);
        }
        done.push(cell);
    }
    let texts: Vec<String> =
        cells.iter().map(|seen| format!("cell {}: {}", seen.cell, deed(&wish, seen))).collect();
    match args.json {
        true => print(&json!({ "cells": done.iter().map(|cell| cell.0).collect::<Vec<_>>() }).to_string()),
        false => print(&texts.join("\n")),
    }
    Ok(0)
}

fn give_up(reason: &str) -> u8 {
    complain(&format!("{reason}; nothing was changed"));
    exit::FAILED
}

/// What the leaders are to be asked; or why nothing is.
async fn wish_of(
    change: &Change,
    args: &MembersArgs,
    cells: &[Seen],
) -> Result<Result<MemberWish, String>, Error> {
    Ok(Ok(match change {
        Change::Add { node: address } => {
            let cell = args.cell.map_or(Config::FIRST_CELL, CellId);
            let new = members_of(address, cell, args.cluster.timeout).await?;
            let role = status_of(address, cell, args.cluster.timeout).await?.role;
            if let Some(reason) = cells.iter().find_map(|seen| misfit(&seen.members, &new, &role)) {
                return Ok(Err(reason));
            }
            MemberWish::AddLearner {
                node: new.node,
                incarnation: new.incarnation,
                peer_address: new.peer_address,
                client_address: new.client_address,
            }
        }
        Change::Promote { node, .. } => MemberWish::Promote { node: NodeId(*node) },
        Change::Remove { node } => MemberWish::Remove { node: NodeId(*node) },
        Change::Move { node, peer, client } => {
            let (peer_address, client_address) = (peer.to_string(), client.clone());
            if peer_address == client_address {
                return Ok(Err(format!(
                    "node {node} cannot serve members and clients at one address; say the port of each"
                )));
            }
            MemberWish::SetAddresses { node: NodeId(*node), peer_address, client_address }
        }
    }))
}

/// Why the node that answers at an address cannot become a member as it is; one that is a member may be asked for again.
fn misfit(members: &MembersInfo, new: &MembersInfo, role: &str) -> Option<String> {
    let node = new.node;
    if new.cluster != members.cluster {
        return Some(format!(
            "that is node {node} of cluster {}, not of cluster {}; format it with the right --cluster",
            new.cluster, members.cluster
        ));
    }
    if new.cells != members.cells {
        return Some(format!(
            "node {node} is configured with {} cells, the others with {}; correct `cells` and restart it",
            new.cells, members.cells
        ));
    }
    if new.shards != members.shards {
        return Some(format!(
            "node {node} was formatted with {}, the others with {}; format it again with --shards {}",
            counted(new.shards, "shard"),
            counted(members.shards, "shard"),
            members.shards
        ));
    }
    let is_same = |it: &MemberState| it.node == node && it.incarnation == new.incarnation;
    if members.members.iter().any(is_same) {
        return None;
    }
    if role == "unborn" {
        return Some(format!(
            "node {node} does not wait to join; set `join = true` in its configuration and restart it"
        ));
    }
    let is_nowhere = new.peer_address.parse::<SocketAddr>().is_err();
    is_nowhere.then(|| format!("node {node} does not say where it serves members"))
}

/// What the leader of a cell would object to a wish, as far as can be seen, so that none makes a change that the next one
/// refuses, and none hands over in vain.
fn foresee(members: &MembersInfo, wish: &MemberWish) -> Result<(), MemberObjection> {
    if members.leader != members.node {
        return Ok(());
    }
    let listed = |member: &MemberState| Listed {
        node: member.node,
        incarnation: member.incarnation,
        is_voter: member.is_voter,
        peer_address: member.peer_address.clone(),
        client_address: member.client_address.clone(),
    };
    let list = Membership::new(members.node_max, members.members.iter().map(listed).collect());
    let next = list.changed(&wish.as_change(), &[])?;
    if *wish == (MemberWish::Remove { node: members.leader }) {
        let is_linked = |node| members.members.iter().any(|it| it.node == node && it.is_linked);
        next.must_be_heard(is_linked)?;
    }
    Ok(())
}

/// No id is left out of all cells: one that a cell has not given yet was given by another.
fn leaves_out(cells: &[Seen], wish: &MemberWish) -> Option<MemberObjection> {
    let MemberWish::AddLearner { node, .. } = wish else { return None };
    let next = cells.iter().map(|seen| u32::from(seen.members.node_max.0) + 1).max()?;
    (u32::from(node.0) > next).then_some(MemberObjection::IdTooFar { node: *node, next })
}

/// A node that only some cells have is removed from those: the others have not made the change that added it.
fn pass_over(cells: &mut Vec<Seen>, wish: &MemberWish) {
    let MemberWish::Remove { node } = wish else { return };
    let has_it = |seen: &Seen| seen.members.members.iter().any(|member| member.node == *node);
    if cells.iter().any(has_it) {
        cells.retain(|seen| has_it(seen) || seen.members.node_max >= *node);
    }
}

/// Has the leader of one cell make the change, whoever leads meanwhile.
async fn carry_out(
    args: &MembersArgs,
    cell: CellId,
    change: &Change,
    wish: &MemberWish,
) -> Result<(), Error> {
    let patience = match change {
        Change::Promote { wait, .. } => args.cluster.timeout.max(*wait),
        Change::Add { .. } | Change::Remove { .. } | Change::Move { .. } => args.cluster.timeout,
    };
    let end = Instant::now() + patience;
    loop {
        let (address, leading) = status::find_leader(&args.cluster, cell).await?;
        let leader = leading.node;
        let result = match change {
            Change::Remove { node } if leader == NodeId(*node) => {
                transfer_leader(&address, cell, None, args.cluster.timeout).await.map(|_| ())
            }
            _ => change_members(&address, cell, wish.clone(), args.cluster.timeout).await,
        };
        let is_over = match (&result, change) {
            // Handed over: now it can be removed.
            (Ok(()), Change::Remove { node }) => leader != NodeId(*node),
            (Ok(()), _) => true,
            (Err(Error::Refused { status: Status::Conflict, .. }), Change::Promote { .. }) => false,
            (Err(Error::Refused { status, .. }), _) => {
                !matches!(status, Status::NotLeader | Status::NoQuorum | Status::ShuttingDown)
            }
            (Err(Error::OutcomeUnknown { .. } | Error::NoCluster { .. }), _) => false,
            (Err(_), _) => true,
        };
        if is_over || Instant::now() >= end {
            return result;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// A cell, as its leader knows it; without one, as anybody does.
struct Seen {
    cell: CellId,
    members: MembersInfo,
    /// What the node is that has said so.
    role: String,
}

/// The cells that are meant.
async fn cells(args: &MembersArgs) -> Result<Vec<Seen>, Error> {
    if let Some(cell) = args.cell.map(CellId) {
        return Ok(vec![look(args, cell).await?]);
    }
    let first = look(args, Config::FIRST_CELL).await?;
    let others = (0..first.members.cells).map(CellId).filter(|cell| *cell != Config::FIRST_CELL);
    let mut cells = vec![first];
    for cell in others {
        cells.push(look(args, cell).await?);
    }
    Ok(cells)
}

async fn look(args: &MembersArgs, cell: CellId) -> Result<Seen, Error> {
    let end = Instant::now() + args.cluster.timeout;
    let patience = LEADER_TIMEOUT.min(args.cluster.timeout);
    let without_leader = loop {
        let answer = match status::find_leader(&args.cluster, cell).await {
            Ok((address, leading)) => members_of(&address, cell, patience).await.map(|it| (it, leading.role)),
            Err(error @ Error::Invalid { .. }) => return Err(error),
            Err(error) => break error,
        };
        // One that is gone since it was found does not keep anybody: another one leads soon.
        match answer {
            Ok((members, role)) => return Ok(Seen { cell, members, role }),
            Err(error) if Instant::now() >= end => break error,
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    };
    // Whoever types this in an outage does not wait for each of those that are gone.
    for address in &args.cluster.endpoints {
        if let Ok(members) = members_of(address, cell, patience).await
            && let Ok(status) = status_of(address, cell, patience).await
        {
            return Ok(Seen { cell, members, role: status.role });
        }
    }
    Err(without_leader)
}

async fn show(args: &MembersArgs) -> Result<u8, Error> {
    let cells = cells(args).await?;
    if args.json {
        let cells: Vec<Value> = cells.iter().map(as_json).collect();
        print(&json!({ "cells": cells }).to_string());
    } else {
        let texts: Vec<String> = cells.iter().map(describe).collect();
        print(&texts.join("\n"));
    }
    let is_led = cells.iter().all(|seen| seen.members.leader != NodeId(0));
    Ok(if is_led { 0 } else { exit::NO_CLUSTER })
}

/// How many entries a member lacks, if a leader has said so.
fn lag(members: &MembersInfo, matched: LogIndex) -> Option<u64> {
    (members.leader == members.node).then(|| members.last.0.saturating_sub(matched.0))
}

fn describe(seen: &Seen) -> String {
    let Seen { cell, members, role } = seen;
    let mut text = match members.leader {
        NodeId(0) if role == "unborn" => {
            format!("cell {cell}: not born yet; every one of its members must be up together once\n")
        }
        NodeId(0) => format!("cell {cell}: no leader; as node {} knows it\n", members.node),
        leader => format!("cell {cell}: led by node {leader}\n"),
    };
    if members.members.is_empty() && role != "unborn" {
        text += "  none: this node waits to be added\n";
    }
    for member in &members.members {
        let role = if member.is_voter { "voter" } else { "learner" };
        let state = match (member.is_linked, lag(members, member.matched)) {
            (false, _) => "not connected".to_owned(),
            (true, None) => "connected".to_owned(),
            (true, Some(0)) => "has everything".to_owned(),
            (true, Some(1)) => "lacks 1 entry".to_owned(),
            (true, Some(lag)) => format!("lacks {lag} entries"),
        };
        text += &format!(
            "  node {}  {role:7}  {}  members {}  {state}\n",
            member.node, member.client_address, member.peer_address
        );
    }
    if members.is_changing {
        text += "  the last change is not committed yet\n";
    }
    text
}

fn as_json(seen: &Seen) -> Value {
    let Seen { cell, members, role } = seen;
    let rows: Vec<Value> = members
        .members
        .iter()
        .map(|member| {
            json!({
                "node": member.node.0,
                "incarnation": member.incarnation.to_string(),
                "voter": member.is_voter,
                "client": member.client_address,
                "peer": member.peer_address,
                "connected": member.is_linked,
                "lag": lag(members, member.matched).map(|lag| lag.to_string()),
            })
        })
        .collect();
    json!({
        "cell": cell.0,
        "leader": (members.leader != NodeId(0)).then_some(members.leader.0),
        "unborn": role == "unborn",
        "changing": members.is_changing,
        "highest_node": members.node_max.0,
        "members": rows,
    })
}

/// What has been done, in words, now that the leader has confirmed it; `before` says how it was.
fn deed(wish: &MemberWish, before: &Seen) -> String {
    match wish {
        MemberWish::AddLearner { node, .. } => {
            let mut listed = before.members.members.iter();
            let is_voter = listed.any(|member| member.node == *node && member.is_voter);
            // A vote goes with its member alone: one that was committed is there still. What is not committed may be
            // taken back, and who does not lead may know less.
            match (is_voter, before.members.is_changing, before.role == "leader") {
                (true, false, _) => format!("node {node} is a member already, with a vote"),
                (true, true, _) | (false, _, false) => {
                    format!("node {node} is a member; `lockstep members` shows whether it has a vote")
                }
                (false, _, true) => format!(
                    "node {node} is a learner; promote it when `lockstep members` shows that it has everything"
                ),
            }
        }
        MemberWish::Promote { node } => format!("node {node} is a voter"),
        MemberWish::Remove { node } => format!("node {node} is removed, for ever; delete its data directory"),
        MemberWish::SetAddresses { node, peer_address, client_address } => {
            format!("node {node} serves clients at {client_address} and members at {peer_address}")
        }
    }
}

#[cfg(test)]
mod tests;
