//! `lockstep members`: who the members of each cell are, how far they have come, and changes of that.
//!
//! Invariant: a change is made cell by cell, each by its leader, and may be asked for again: what has been done already is
//! said so and is no failure. What is decided about a cell here is decided by its leader's word alone. Deliberately absent:
//! what is allowed in a cell; the core says that, to its leader and here before the first of them is asked.

use std::cmp::Reverse;
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
        #[arg(long, value_name = "HOST:PORT", value_parser = parse_client)]
        client: String,
    },
}

impl Change {
    /// For how long the state of a cell may stand against it, in all cells together.
    fn wait(&self) -> Duration {
        match self {
            Change::Promote { wait, .. } => *wait,
            Change::Add { .. } | Change::Remove { .. } | Change::Move { .. } => Duration::ZERO,
        }
    }
}

/// Members find each other by numbers: a name that cannot be resolved must not stop them.
fn parse_peer(text: &str) -> Result<SocketAddr, String> {
    let mut addresses = text.to_socket_addrs().map_err(|error| format!("{error}; it is host:port"))?;
    let address = addresses.next().ok_or_else(|| "it has no address".to_owned())?;
    must_be_somewhere(address)?;
    Ok(address)
}

/// Clients may know a member by a name that only they can resolve.
fn parse_client(text: &str) -> Result<String, String> {
    let text = super::parse_endpoint(text)?;
    text.parse().map_or(Ok(()), must_be_somewhere)?;
    Ok(text)
}

fn must_be_somewhere(address: SocketAddr) -> Result<(), String> {
    if address.port() == 0 || address.ip().is_unspecified() {
        return Err(format!(
            "nobody can reach a member at {address}: give the address and the port that it is reached at"
        ));
    }
    Ok(())
}

pub(super) async fn run(args: MembersArgs) -> Result<u8, Error> {
    let Some(change) = &args.change else { return show(&args).await };
    let mut cells = cells_of_change(&args, change).await?;
    let wish = match wish_of(change, &args, &cells).await? {
        Ok(wish) => wish,
        Err(reason) => return Ok(give_up(&reason)),
    };
    let is_meant = |cell: CellId| args.cell.is_none_or(|only| cell.0 == only);
    if let Some(reason) = splits(&cells, is_meant, &wish) {
        return Ok(give_up(&reason));
    }
    cells.retain(|seen| is_meant(seen.cell));
    let mut passed = pass_over(&mut cells, &wish);
    // A removal from a cell in which something is under way is for its leader to judge: it may not be concerned at all.
    let is_removal = matches!(wish, MemberWish::Remove { .. });
    for seen in cells.iter().filter(|seen| !(is_removal && seen.members.is_changing)) {
        if let Err(objection) = foresee(&seen.members, &wish) {
            return Ok(give_up(&format!("cell {}: {objection}", seen.cell)));
        }
    }
    let wait_end = Instant::now() + change.wait();
    let (mut done, mut no_member) = (Vec::new(), None);
    for seen in &cells {
        match carry_out(&args, seen.cell, change, &wish, wait_end).await {
            Ok(()) => done.push(seen),
            Err(error) if args.cell.is_none() && is_no_member(&error, &wish) => {
                passed.push(seen.cell);
                no_member = Some(error);
            }
            Err(error) => {
                for seen in done {
                    complain(&format!("cell {} has made the change; ask again for the others", seen.cell));
                }
                return Err(error);
            }
        }
    }
    if let Some(error) = no_member.filter(|_| done.is_empty()) {
        return Err(error);
    }
    passed.sort_unstable();
    match args.json {
        true => {
            let done: Vec<u16> = done.iter().map(|seen| seen.cell.0).collect();
            let passed: Vec<u16> = passed.iter().map(|cell| cell.0).collect();
            print(&json!({ "cells": done, "passed_over": passed }).to_string());
        }
        false => print(&deeds(&wish, &done, &passed)),
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
            for seen in cells {
                let role = status_of(address, seen.cell, args.cluster.timeout).await?.role;
                if let Some(reason) = misfit(&seen.members, &new, &role) {
                    return Ok(Err(reason));
                }
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
            "node {node} is configured with {}, the others with {}; correct `cells` and restart it",
            counted(new.cells, "cell"),
            counted(members.cells, "cell")
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
        let is_heard = |node| members.members.iter().any(|it| it.node == node && it.is_heard);
        next.must_be_heard(is_heard)?;
    }
    Ok(())
}

/// Why a node must not be added although no leader would mind, each of which knows its own cell alone. An id that is
/// skipped is lost to a cell for ever: none may be skipped by all of them, nor one that is a member of another cell.
fn splits(cells: &[Seen], is_meant: impl Fn(CellId) -> bool, wish: &MemberWish) -> Option<String> {
    let MemberWish::AddLearner { node, .. } = wish else { return None };
    let next = cells.iter().map(|seen| u32::from(seen.members.node_max.0) + 1).max()?;
    if u32::from(node.0) > next {
        return Some(MemberObjection::IdTooFar { node: *node, next }.to_string());
    }
    for seen in cells.iter().filter(|seen| is_meant(seen.cell)) {
        let is_skipped = |member: &&MemberState| seen.members.node_max < member.node && member.node < *node;
        for other in cells {
            if let Some(MemberState { node: skipped, .. }) = other.members.members.iter().find(is_skipped) {
                return Some(format!(
                    "node {skipped} is a member of cell {} and not of cell {}, which could never have it once node {node} is \
                     added: add node {skipped} to all cells first, or remove it",
                    other.cell, seen.cell
                ));
            }
        }
    }
    None
}

/// A node that only some cells have is removed from those: the others have not made the change that added it. Takes the
/// others out, and says which they are.
fn pass_over(cells: &mut Vec<Seen>, wish: &MemberWish) -> Vec<CellId> {
    let MemberWish::Remove { node } = wish else { return Vec::new() };
    let has_never_had_it = |seen: &Seen| {
        let is_listed = seen.members.members.iter().any(|member| member.node == *node);
        // What is under way may have been its addition, or may be taken back.
        !seen.members.is_changing && !is_listed && seen.members.node_max < *node
    };
    if cells.iter().all(has_never_had_it) {
        return Vec::new();
    }
    let passed = cells.iter().filter(|seen| has_never_had_it(seen)).map(|seen| seen.cell).collect();
    cells.retain(|seen| !has_never_had_it(seen));
    passed
}

/// Whether a leader refused to remove a node because the cell has never had it: nothing else can be wrong with asking.
fn is_no_member(error: &Error, wish: &MemberWish) -> bool {
    matches!(wish, MemberWish::Remove { .. })
        && matches!(error, Error::Refused { status: Status::Invalid, .. })
}

/// Has the leader of one cell make the change, whoever leads meanwhile; what stands against it may change until `wait_end`.
async fn carry_out(
    args: &MembersArgs,
    cell: CellId,
    change: &Change,
    wish: &MemberWish,
    wait_end: Instant,
) -> Result<(), Error> {
    let end = Instant::now() + args.cluster.timeout;
    let mut conflict_end = wait_end.max(Instant::now() + status::MOMENT);
    let (mut unknown, mut is_patient) = (None, false);
    loop {
        let (end, error) = match try_once(args, cell, change, wish).await {
            Ok(Tried::Done) => return Ok(()),
            Ok(Tried::HandedOver) => {
                conflict_end = conflict_end.max(end);
                let what = format!("changing the members of cell {cell}");
                let trouble = "the node handed over, too late for its removal".to_owned();
                (end, Error::NoCluster { what, trouble })
            }
            Err(error @ Error::Refused { status: Status::Conflict, .. }) => {
                let left = conflict_end.saturating_duration_since(Instant::now());
                if left > status::MOMENT && !std::mem::replace(&mut is_patient, true) {
                    complain(&format!("{error}; trying again for {} s", left.as_secs()));
                }
                (conflict_end, error)
            }
            Err(
                error @ (Error::Refused {
                    status: Status::NotLeader | Status::NoQuorum | Status::ShuttingDown,
                    ..
                }
                | Error::NoCluster { .. }),
            ) => (end, error),
            // What stands against it next may be what this has begun.
            Err(error @ Error::OutcomeUnknown { .. }) => {
                conflict_end = conflict_end.max(end);
                unknown = Some(error.clone());
                (end, error)
            }
            Err(error) => return Err(error),
        };
        if Instant::now() >= end {
            // What an earlier attempt has begun may come about yet.
            return Err(unknown.unwrap_or(error));
        }
        tokio::time::sleep(status::AGAIN).await;
    }
}

/// What an attempt has come to.
enum Tried {
    Done,
    /// The node that is to be removed leads no more: now it can be.
    HandedOver,
}

async fn try_once(
    args: &MembersArgs,
    cell: CellId,
    change: &Change,
    wish: &MemberWish,
) -> Result<Tried, Error> {
    let (address, leading) = status::find_leader(&args.cluster, cell).await?;
    match change {
        Change::Remove { node } if leading.node == NodeId(*node) => {
            transfer_leader(&address, cell, None, args.cluster.timeout).await?;
            Ok(Tried::HandedOver)
        }
        Change::Add { .. } | Change::Promote { .. } | Change::Remove { .. } | Change::Move { .. } => {
            change_members(&address, cell, wish.clone(), args.cluster.timeout).await?;
            Ok(Tried::Done)
        }
    }
}

/// A cell, as its leader knows it; when it is only shown and has none, as anybody does.
struct Seen {
    cell: CellId,
    members: MembersInfo,
    /// What the node is that has said so.
    role: String,
}

/// The cells that a change has to look at. An id is given once in a cluster, so that who gives one looks at all of them.
async fn cells_of_change(args: &MembersArgs, change: &Change) -> Result<Vec<Seen>, Error> {
    match (change, args.cell.map(CellId)) {
        (Change::Add { .. }, Some(only)) => {
            by_leader(args, only, true).await?;
            all_cells(args, true).await
        }
        (Change::Promote { .. } | Change::Remove { .. } | Change::Move { .. }, Some(only)) => {
            Ok(vec![by_leader(args, only, true).await?])
        }
        (_, None) => all_cells(args, true).await,
    }
}

async fn all_cells(args: &MembersArgs, is_change: bool) -> Result<Vec<Seen>, Error> {
    let first = look(args, Config::FIRST_CELL, is_change).await?;
    let others = (0..first.members.cells).map(CellId).filter(|cell| *cell != Config::FIRST_CELL);
    let mut cells = vec![first];
    for cell in others {
        cells.push(look(args, cell, is_change).await?);
    }
    Ok(cells)
}

async fn look(args: &MembersArgs, cell: CellId, is_change: bool) -> Result<Seen, Error> {
    let without_leader = match by_leader(args, cell, is_change).await {
        Err(error) if !is_change && !matches!(error, Error::Invalid { .. }) => error,
        outcome => return outcome,
    };
    let patience = LEADER_TIMEOUT.min(args.cluster.timeout);
    // All at once: whoever types this in an outage does not wait for each of those that are gone.
    let said = status::ask(&args.cluster, cell).await;
    let answers = said.iter().filter_map(|(address, answer)| Some((address, answer.as_ref().ok()?)));
    let mut answers: Vec<_> = answers.collect();
    answers.sort_by_key(|(_, status)| Reverse(status.applied));
    for (address, status) in answers {
        if let Ok(members) = members_of(address, cell, patience).await {
            return Ok(Seen { cell, members, role: status.role.clone() });
        }
    }
    Err(without_leader)
}

/// What the leader of a cell says; a change waits for one, because nobody else knows what is committed.
async fn by_leader(args: &MembersArgs, cell: CellId, is_change: bool) -> Result<Seen, Error> {
    let end = Instant::now() + args.cluster.timeout;
    let patience = LEADER_TIMEOUT.min(args.cluster.timeout);
    loop {
        let (error, is_waiting) = match status::find_leader(&args.cluster, cell).await {
            // One that is gone since it was found does not keep anybody: another one leads soon.
            Ok((address, leading)) => match members_of(&address, cell, patience).await {
                Ok(members) if members.leader == members.node => {
                    return Ok(Seen { cell, members, role: leading.role });
                }
                Ok(_) => {
                    let what = format!("looking for the leader of cell {cell}");
                    (Error::NoCluster { what, trouble: format!("{address} leads no more") }, true)
                }
                Err(error) => (error, is_change),
            },
            Err(error @ Error::Invalid { .. }) => return Err(error),
            Err(error) => (error, is_change),
        };
        if !is_waiting || Instant::now() >= end {
            return Err(error);
        }
        tokio::time::sleep(status::AGAIN).await;
    }
}

async fn show(args: &MembersArgs) -> Result<u8, Error> {
    let cells = match args.cell {
        Some(only) => vec![look(args, CellId(only), false).await?],
        None => all_cells(args, false).await?,
    };
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
            format!("cell {cell}: {}\n", status::UNBORN)
        }
        NodeId(0) => format!("cell {cell}: no leader; as node {} knows it\n", members.node),
        leader => format!("cell {cell}: led by node {leader}\n"),
    };
    if members.members.is_empty() && role != "unborn" {
        text += "  none: this node waits to be added\n";
    }
    for member in &members.members {
        let role = if member.is_voter { "voter" } else { "learner" };
        let state = match (member.is_heard, lag(members, member.matched)) {
            (false, Some(_)) => "not heard".to_owned(),
            (false, None) => "not connected".to_owned(),
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
                "heard": member.is_heard,
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

/// What has been done, in words, cell by cell.
fn deeds(wish: &MemberWish, done: &[&Seen], passed: &[CellId]) -> String {
    let mut lines: Vec<(CellId, String)> =
        done.iter().map(|seen| (seen.cell, format!("cell {}: {}", seen.cell, deed(wish, seen)))).collect();
    if let MemberWish::Remove { node } = wish {
        let never = |cell: &CellId| format!("cell {cell}: node {node} has never been a member; passed over");
        lines.extend(passed.iter().map(|cell| (*cell, never(cell))));
    }
    lines.sort_unstable();
    let mut lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
    if let MemberWish::Remove { node } = wish
        && !passed.is_empty()
    {
        lines.push(format!(
            "node {node} still waits to join where it was passed over, and does not end by itself: stop it"
        ));
    }
    lines.join("\n")
}

/// What one cell has done, now that its leader has confirmed it; `before` says how it was.
fn deed(wish: &MemberWish, before: &Seen) -> String {
    let members = &before.members;
    let is_listed = |node: &NodeId| members.members.iter().any(|member| member.node == *node);
    match wish {
        MemberWish::AddLearner { node, .. } => {
            let is_voter = members.members.iter().any(|member| member.node == *node && member.is_voter);
            // A vote goes with its member alone: one that was committed is there still. What is not committed may be
            // taken back.
            match (is_voter, members.is_changing) {
                (true, false) => format!("node {node} is a member already, with a vote"),
                (true, true) => {
                    format!("node {node} is a member; `lockstep members` shows whether it has a vote")
                }
                (false, _) => format!(
                    "node {node} is a learner; `lockstep members promote {node}` waits until it has caught up"
                ),
            }
        }
        MemberWish::Promote { node } => format!("node {node} is a voter"),
        MemberWish::Remove { node } if !is_listed(node) && !members.is_changing => {
            format!("node {node} is no member, and cannot become one; nothing was to do")
        }
        MemberWish::Remove { node } => format!("node {node} is removed, for ever; delete its data directory"),
        MemberWish::SetAddresses { node, peer_address, client_address } => {
            format!("node {node} serves clients at {client_address} and members at {peer_address}")
        }
    }
}

#[cfg(test)]
mod tests;
