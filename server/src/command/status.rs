//! `lockstep status`: how each cell and its members are.
//!
//! Invariant: every member speaks for itself; who does not answer is shown as such. Exit code 0 means that every cell has a
//! member that leads it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::Args;
use lockstep_client::core::StatusInfo;
use lockstep_client::{Config, Error, routes_of, status_of};
use lockstep_wire::CellId;
use serde_json::{Value, json};

use super::{Cluster, exit, print};

/// How long one member may take to say how it is.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(2);

/// Show how each cell and its members are.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// Print JSON; 64-bit numbers as strings.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: Cluster,
}

/// What each address said.
pub(super) type Members = BTreeMap<String, Result<StatusInfo, Error>>;

pub(super) async fn run(args: StatusArgs) -> Result<u8, Error> {
    let endpoints: Vec<String> =
        args.cluster.endpoints.iter().map(|endpoint| endpoint.trim().to_owned()).collect();
    let routes = routes_of(endpoints.clone(), Config::FIRST_CELL, args.cluster.timeout).await?;
    let mut cells: BTreeMap<CellId, Vec<String>> = BTreeMap::from([(Config::FIRST_CELL, Vec::new())]);
    for route in routes {
        cells.entry(route.cell).or_default().push(route.namespace);
    }
    let mut all = Vec::new();
    for (cell, namespaces) in cells {
        all.push((cell, namespaces, ask(&endpoints, cell).await));
    }
    if args.json {
        let cells: Vec<Value> =
            all.iter().map(|(cell, names, members)| as_json(*cell, names, members)).collect();
        print(&json!({ "cells": cells }).to_string());
    } else {
        let texts: Vec<String> =
            all.iter().map(|(cell, names, members)| describe(*cell, names, members)).collect();
        print(&texts.join("\n"));
    }
    let is_led = all.iter().all(|(_, _, members)| leader(members).is_some());
    Ok(if is_led { 0 } else { exit::NO_CLUSTER })
}

/// Asks the endpoints, and every member that one of them names.
pub(super) async fn ask(endpoints: &[String], cell: CellId) -> Members {
    let mut said = Members::new();
    let mut wanted: BTreeSet<String> = endpoints.iter().cloned().collect();
    while !wanted.is_empty() {
        let asked: Vec<_> = std::mem::take(&mut wanted)
            .into_iter()
            .map(|address| {
                let of = address.clone();
                (address, tokio::spawn(async move { status_of(&of, cell, MEMBER_TIMEOUT).await }))
            })
            .collect();
        for (address, answer) in asked {
            let what = format!("asking {address}");
            let answer = answer.await.unwrap_or(Err(Error::Stopped { what }));
            if let Ok(status) = &answer {
                wanted.extend(status.members.iter().map(|member| member.address.clone()));
            }
            said.insert(address, answer);
        }
        wanted.retain(|address| !address.is_empty() && !said.contains_key(address));
    }
    said
}

fn leader(members: &Members) -> Option<&StatusInfo> {
    leader_at(members).map(|(_, status)| status)
}

/// The member that leads in the newest term, and where it was asked.
pub(super) fn leader_at(members: &Members) -> Option<(&str, &StatusInfo)> {
    let answers =
        members.iter().filter_map(|(address, answer)| Some((address.as_str(), answer.as_ref().ok()?)));
    let leaders = answers.filter(|(_, status)| status.role == "leader");
    leaders.max_by_key(|(_, status)| status.term)
}

fn describe(cell: CellId, namespaces: &[String], members: &Members) -> String {
    let mut text = match leader(members) {
        Some(leader) => format!(
            "cell {cell}: led by node {} in term {}; {} sessions, {} locks, {} entries committed\n",
            leader.node, leader.term, leader.sessions, leader.locks, leader.committed
        ),
        // One that was formatted again knows of no birth either; whoever has a term knows better.
        None if members.values().flatten().all(|status| status.role == "unborn")
            && members.values().any(Result::is_ok) =>
        {
            format!("cell {cell}: not born yet; every one of its members must be up together once\n")
        }
        None => {
            format!("cell {cell}: no leader; nothing can be granted until a majority of its members is up\n")
        }
    };
    let named: Vec<&str> =
        namespaces.iter().map(|name| if name.is_empty() { "all others" } else { name }).collect();
    if !named.is_empty() && named != ["all others"] {
        text += &format!("  serves {}\n", named.join(", "));
    }
    let width = members.keys().map(String::len).max().unwrap_or(0);
    let is_born = members.values().flatten().any(|status| status.role != "unborn");
    for (address, answer) in members {
        text += &match answer {
            Ok(status) if status.role == "unborn" && is_born => format!(
                "  {address:width$}  node {}  knows nothing of this cell; was its directory formatted again? its log says\n",
                status.node
            ),
            Ok(status) => format!(
                "  {address:width$}  node {}  {:9}  term {}  applied {}  durable {}{}\n",
                status.node,
                status.role,
                status.term,
                status.applied,
                status.durable,
                if status.is_short_of_space { "  its disk is full" } else { "" }
            ),
            Err(error) => format!("  {address:width$}  no answer: {}\n", trouble(error)),
        };
    }
    text
}

/// The short form of why somebody did not answer.
fn trouble(error: &Error) -> String {
    match error {
        Error::NoCluster { trouble, .. } => trouble.clone(),
        other => other.to_string(),
    }
}

fn as_json(cell: CellId, namespaces: &[String], members: &Members) -> Value {
    let rows: Vec<Value> = members
        .iter()
        .map(|(address, answer)| match answer {
            Ok(status) => json!({
                "address": address,
                "node": status.node.0,
                "role": status.role,
                "term": status.term.to_string(),
                "leader": status.leader.0,
                "committed": status.committed.to_string(),
                "applied": status.applied.to_string(),
                "durable": status.durable.to_string(),
                "sessions": status.sessions.to_string(),
                "locks": status.locks.to_string(),
                "short_of_space": status.is_short_of_space,
                "digest": format!("{:016x}", status.digest),
            }),
            Err(error) => json!({ "address": address, "error": error.to_string() }),
        })
        .collect();
    json!({
        "cell": cell.0,
        "namespaces": namespaces,
        "leader": leader(members).map(|status| status.node.0),
        "members": rows,
    })
}

#[cfg(test)]
mod tests {
    use lockstep_wire::{LogIndex, NodeId, Term};

    use super::*;

    fn status(node: u16, role: &str) -> StatusInfo {
        StatusInfo {
            node: NodeId(node),
            role: role.to_owned(),
            term: Term(4),
            leader: NodeId(1),
            leader_address: String::new(),
            committed: LogIndex(90),
            applied: LogIndex(90),
            durable: LogIndex(91),
            sessions: 3,
            locks: 2,
            digest: 5,
            is_short_of_space: node == 2,
            members: Vec::new(),
        }
    }

    #[test]
    fn a_cell_is_described_with_each_of_its_members() {
        let silent = Error::NoCluster { what: String::new(), trouble: "c:1: refused".to_owned() };
        let members = Members::from([
            ("a:1".to_owned(), Ok(status(1, "leader"))),
            ("bb:1".to_owned(), Ok(status(2, "follower"))),
            ("c:1".to_owned(), Err(silent)),
        ]);
        let text = describe(CellId(1), &[String::new()], &members);
        let wanted = "cell 1: led by node 1 in term 4; 3 sessions, 2 locks, 90 entries committed
  a:1   node 1  leader     term 4  applied 90  durable 91
  bb:1  node 2  follower   term 4  applied 90  durable 91  its disk is full
  c:1   no answer: c:1: refused
";
        assert_eq!(text, wanted);
        assert_eq!(as_json(CellId(1), &[], &members)["members"][0]["applied"], "90");
    }

    #[test]
    fn a_cell_without_a_leader_says_what_it_waits_for() {
        let members = Members::from([("a:1".to_owned(), Ok(status(1, "candidate")))]);
        assert!(describe(CellId(2), &["pay".to_owned()], &members).starts_with("cell 2: no leader;"));
        let unborn = Members::from([("a:1".to_owned(), Ok(status(1, "unborn")))]);
        assert!(describe(CellId(2), &[], &unborn).starts_with("cell 2: not born yet;"));
    }

    #[test]
    fn one_member_that_was_formatted_again_does_not_make_the_cell_unborn() {
        let members = Members::from([
            ("a:1".to_owned(), Ok(status(1, "candidate"))),
            ("b:1".to_owned(), Ok(status(2, "unborn"))),
        ]);
        let text = describe(CellId(0), &[], &members);
        assert!(text.starts_with("cell 0: no leader;"), "{text}");
        assert!(text.contains("b:1  node 2  knows nothing of this cell"), "{text}");
    }
}
