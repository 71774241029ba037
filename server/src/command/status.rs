//! `lockstep status`: how each cell and its members are.
//!
//! Invariant: every member speaks for itself; who does not answer is shown as such. Exit code 0 means that every cell has a
//! member that leads it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use clap::Args;
use lockstep_client::core::StatusInfo;
use lockstep_client::{Config, Error, routes_of, status_of};
use lockstep_wire::{CellId, NodeId, Status};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Cluster, TIMEOUT_MIN, counted, exit, print};

/// How long one member may take to say how it is, however patient the user is.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(2);

/// Likewise for somebody who has waited already.
const HASTE: Duration = Duration::from_millis(500);

/// Cells that are asked about at once: each member that is asked takes a thread and a few descriptors.
const CELLS_AT_ONCE: usize = 8;

/// How long to wait before a leader is looked for again.
pub(super) const AGAIN: Duration = Duration::from_millis(200);
/// How long a leader may take to hear whoever has just come back, or all when it is new, and a change of the members that is
/// under way to be committed: what a cell refuses for such a reason is asked for again until then.
pub(super) const MOMENT: Duration = Duration::from_secs(1);

/// What is said of a cell that has yet to be born.
pub(super) const UNBORN: &str = "not born yet; every one of its members must be up together once";

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
    let endpoints = args.cluster.endpoints.clone();
    let routes = routes_of(endpoints, Config::FIRST_CELL, args.cluster.timeout).await?;
    let mut cells: BTreeMap<CellId, Vec<String>> = BTreeMap::from([(Config::FIRST_CELL, Vec::new())]);
    for route in routes {
        cells.entry(route.cell).or_default().push(route.namespace);
    }
    let (mut all, mut asking) = (Vec::new(), JoinSet::new());
    for (cell, namespaces) in cells {
        if asking.len() == CELLS_AT_ONCE {
            all.extend(asking.join_next().await);
        }
        let cluster = args.cluster.clone();
        asking.spawn(async move { (cell, namespaces, ask(&cluster, cell).await) });
    }
    while let Some(answer) = asking.join_next().await {
        all.push(answer);
    }
    let mut all: Vec<_> =
        all.into_iter().map(|it| it.expect("asking does not panic and is not cancelled")).collect();
    all.sort_unstable_by_key(|(cell, ..)| *cell);
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

/// Asks the endpoints, and every member that one of them names, and waits for all of them.
pub(super) async fn ask(cluster: &Cluster, cell: CellId) -> Members {
    ask_until(cluster, cell, |_| false).await
}

/// The member that leads, and where: as soon as a majority has answered, or all that the leader hears, nobody in a newer term.
/// Nobody waits for members that are silent.
pub(super) async fn find_leader(cluster: &Cluster, cell: CellId) -> Result<(String, StatusInfo), Error> {
    leader_of(cell, &ask_until(cluster, cell, is_settled).await)
}

/// Likewise; as long as somebody answers who may elect one, it is waited for.
pub(super) async fn wait_for_leader(cluster: &Cluster, cell: CellId) -> Result<(String, StatusInfo), Error> {
    let end = Instant::now() + cluster.timeout;
    loop {
        let timeout = end.saturating_duration_since(Instant::now()).max(TIMEOUT_MIN);
        let members = ask_until(&Cluster { timeout, ..cluster.clone() }, cell, is_settled).await;
        let may_elect =
            members.values().any(Result::is_ok) && !is_all_unborn(&members) && !is_joining(&members);
        match leader_of(cell, &members) {
            Err(Error::NoCluster { .. }) if may_elect && Instant::now() < end => sleep(AGAIN).await,
            outcome => return outcome,
        }
    }
}

fn leader_of(cell: CellId, members: &Members) -> Result<(String, StatusInfo), Error> {
    if let Some((address, status)) = leader_at(members) {
        return Ok((address.to_owned(), status.clone()));
    }
    let what = format!("looking for the leader of cell {cell}");
    let refused = members.values().find_map(|answer| match answer {
        Err(Error::Refused { status: Status::WrongCell, detail, .. }) => Some(detail),
        Ok(_) | Err(_) => None,
    });
    match refused {
        Some(detail) => Err(Error::Invalid { what, detail: detail.clone() }),
        None => Err(Error::NoCluster { what, trouble: unled(members) }),
    }
}

/// What was answered where nobody leads.
fn unled(members: &Members) -> String {
    let said = members.iter().map(|(address, answer)| match answer {
        Ok(status) => format!("{address}: node {} is {}", status.node, status.role),
        Err(error) => {
            let trouble = trouble(error);
            match trouble.starts_with(address.as_str()) {
                true => trouble,
                false => format!("{address}: {trouble}"),
            }
        }
    });
    format!("nobody who was asked leads it; {}", said.collect::<Vec<_>>().join("; "))
}

/// Whether it is known who leads: whoever says so of himself, with a majority that knows of no newer term. Learners are among
/// the members, so that a majority of the voters may be less than half of all: those whom the leader hears are enough as well.
/// One that stood still hears nobody when it goes on.
fn is_settled(members: &Members) -> bool {
    let Some(leader) = leader(members) else { return false };
    let heard = members.values().flatten();
    let behind: BTreeSet<NodeId> =
        heard.clone().filter(|status| status.term <= leader.term).map(|status| status.node).collect();
    let mut followers = leader.members.iter().filter(|it| it.is_heard && it.node != leader.node).peekable();
    let are_enough = behind.len() > leader.members.len() / 2
        || (followers.peek().is_some() && followers.all(|it| behind.contains(&it.node)));
    are_enough && heard.into_iter().all(|status| status.term <= leader.term)
}

/// Asks the endpoints, and every member that one of them names, all at once; until all have answered or could not, or it
/// is enough.
async fn ask_until(cluster: &Cluster, cell: CellId, is_enough: impl Fn(&Members) -> bool) -> Members {
    let (mut said, mut asked, mut answers) = (Members::new(), BTreeSet::new(), JoinSet::new());
    let timeout = cluster.timeout.min(MEMBER_TIMEOUT);
    let mut ask = |address: &str, answers: &mut JoinSet<_>| {
        if !address.is_empty() && asked.insert(address.to_owned()) {
            let address = address.to_owned();
            answers.spawn(async move {
                let answer = status_of(&address, cell, timeout).await;
                (address, answer)
            });
        }
    };
    cluster.endpoints.iter().for_each(|endpoint| ask(endpoint, &mut answers));
    while let Some(answer) = answers.join_next().await {
        let (address, answer) = answer.expect("asking does not panic and is not cancelled");
        if let Ok(status) = &answer {
            status.members.iter().for_each(|member| ask(&member.address, &mut answers));
        }
        said.insert(address, answer);
        if is_enough(&said) {
            break;
        }
    }
    said
}

fn leader(members: &Members) -> Option<&StatusInfo> {
    leader_at(members).map(|(_, status)| status)
}

/// The member that leads in the newest term, and where it was asked.
fn leader_at(members: &Members) -> Option<(&str, &StatusInfo)> {
    let answers =
        members.iter().filter_map(|(address, answer)| Some((address.as_str(), answer.as_ref().ok()?)));
    let leaders = answers.filter(|(_, status)| status.role == "leader");
    leaders.max_by_key(|(_, status)| status.term)
}

fn describe(cell: CellId, namespaces: &[String], members: &Members) -> String {
    let mut text = match leader(members) {
        Some(leader) => {
            format!(
                "cell {cell}: led by node {} in term {}; {}, {}, committed through entry {}\n",
                leader.node,
                leader.term,
                counted(leader.sessions, "session"),
                counted(leader.locks, "lock"),
                leader.committed
            ) + &quiet(leader)
        }
        None if is_joining(members) => {
            format!(
                "cell {cell}: not joined yet; a member adds a node that waits: `lockstep members add HOST:PORT`\n"
            )
        }
        None if is_all_unborn(members) => format!("cell {cell}: {UNBORN}\n"),
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

/// What a restored cell that grants nothing yet says of it.
fn quiet(leader: &StatusInfo) -> String {
    match leader.is_quiet {
        true => format!(
            "  it was restored and grants nothing yet: for another {} s, if this leader stays; requests wait\n",
            leader.quiet_left_ms.div_ceil(1_000)
        ),
        false => String::new(),
    }
}

/// Whether nobody has answered but nodes that wait to be added.
fn is_joining(members: &Members) -> bool {
    let mut answers = members.values().flatten().peekable();
    answers.peek().is_some() && answers.all(|status| status.role == "joining")
}

/// Whether all that have answered know of no birth. One that was formatted again does not either; whoever has a term knows
/// better.
fn is_all_unborn(members: &Members) -> bool {
    let mut answers = members.values().flatten().peekable();
    answers.peek().is_some() && answers.all(|status| status.role == "unborn")
}

/// Whether a cell that gives no answer has yet to be born, as far as its members say that soon.
pub(super) async fn is_unborn(cluster: &Cluster, cell: CellId) -> bool {
    let hasty = Cluster { timeout: cluster.timeout.min(HASTE), ..cluster.clone() };
    let is_born = |members: &Members| members.values().any(Result::is_ok) && !is_all_unborn(members);
    is_all_unborn(&ask_until(&hasty, cell, is_born).await)
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
                "quiet": status.is_quiet,
                "quiet_left_ms": status.quiet_left_ms,
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
    use lockstep_client::core::MemberInfo;
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
            is_quiet: false,
            quiet_left_ms: 0,
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
        let wanted = "cell 1: led by node 1 in term 4; 3 sessions, 2 locks, committed through entry 90
  a:1   node 1  leader     term 4  applied 90  durable 91
  bb:1  node 2  follower   term 4  applied 90  durable 91  its disk is full
  c:1   no answer: c:1: refused
";
        assert_eq!(text, wanted);
        assert_eq!(as_json(CellId(1), &[], &members)["members"][0]["applied"], "90");
    }

    #[test]
    fn a_restored_cell_is_described_as_quiet_until_it_grants() {
        let leader = StatusInfo { is_quiet: true, quiet_left_ms: 41_200, ..status(1, "leader") };
        let members = Members::from([("a:1".to_owned(), Ok(leader))]);
        let text = describe(CellId(0), &[], &members);
        let wanted = "cell 0: led by node 1 in term 4; 3 sessions, 2 locks, committed through entry 90
  it was restored and grants nothing yet: for another 42 s, if this leader stays; requests wait
  a:1  node 1  leader     term 4  applied 90  durable 91
";
        assert_eq!(text, wanted);
        assert_eq!(as_json(CellId(0), &[], &members)["members"][0]["quiet"], true);
    }

    #[test]
    fn a_node_that_waits_to_be_added_says_so_and_how() {
        let alone = Members::from([("a:1".to_owned(), Ok(status(4, "joining")))]);
        let text = describe(CellId(0), &[], &alone);
        let wanted =
            "cell 0: not joined yet; a member adds a node that waits: `lockstep members add HOST:PORT`
  a:1  node 4  joining    term 4  applied 90  durable 91
";
        assert_eq!(text, wanted);
        let with_others = Members::from([
            ("a:1".to_owned(), Ok(status(4, "joining"))),
            ("b:1".to_owned(), Ok(status(2, "follower"))),
        ]);
        assert!(describe(CellId(0), &[], &with_others).starts_with("cell 0: no leader;"));
    }

    #[test]
    fn who_leads_is_known_when_a_majority_has_answered_and_none_is_ahead() {
        let member = |node, is_heard| MemberInfo {
            node: NodeId(node),
            address: String::new(),
            is_heard,
            matched: LogIndex(0),
        };
        let members = (1..=3).map(|node| member(node, true)).collect();
        let leader = StatusInfo { members, ..status(1, "leader") };
        let mut members = Members::from([("a:1".to_owned(), Ok(leader.clone()))]);
        assert!(!is_settled(&members), "it may have been deposed long ago");
        members.insert("localhost:1".to_owned(), Ok(leader));
        assert!(!is_settled(&members), "that is the same one");
        members.insert("b:1".to_owned(), Ok(status(2, "follower")));
        assert!(is_settled(&members));
        members.insert("c:1".to_owned(), Ok(StatusInfo { term: Term(5), ..status(3, "candidate") }));
        assert!(!is_settled(&members));
        assert!(!is_settled(&Members::from([("b:1".to_owned(), Ok(status(2, "follower")))])));
        // A voter and a learner are away.
        let members = (1..=4).map(|node| member(node, node <= 2)).collect();
        let leader = StatusInfo { members, ..status(1, "leader") };
        let mut members = Members::from([("a:1".to_owned(), Ok(leader))]);
        assert!(!is_settled(&members));
        members.insert("b:1".to_owned(), Ok(status(2, "follower")));
        assert!(is_settled(&members));
        // It has stood still.
        let members = (1..=4).map(|node| member(node, node <= 1)).collect();
        let leader = StatusInfo { members, ..status(1, "leader") };
        assert!(!is_settled(&Members::from([("a:1".to_owned(), Ok(leader))])));
    }

    #[test]
    fn who_finds_no_leader_is_told_what_each_answered() {
        let refused =
            |trouble: &str| Err(Error::NoCluster { what: "asking".to_owned(), trouble: trouble.to_owned() });
        let members = Members::from([
            ("a:1".to_owned(), Ok(status(1, "candidate"))),
            ("b:1".to_owned(), refused("b:1: refused")),
            ("c:1".to_owned(), refused("does not lead")),
        ]);
        let wanted =
            "nobody who was asked leads it; a:1: node 1 is candidate; b:1: refused; c:1: does not lead";
        assert_eq!(unled(&members), wanted);
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
