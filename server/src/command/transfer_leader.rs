//! `lockstep transfer-leader`: has the leader of a cell hand over to another member.
//!
//! Invariant: leadership moves once, whoever moves it; a leader that refuses is asked again for a moment only, and exit code 0
//! means that the member that was wished for leads.

use std::time::Instant;

use clap::Args;
use lockstep_client::{Error, transfer_leader};
use lockstep_wire::{CellId, NodeId, Status, Term};
use serde_json::json;

use super::{Cluster, complain, exit, print, status};

/// Move the leadership of a cell to another member, before its node is stopped for example.
#[derive(Args, Debug)]
pub(crate) struct TransferLeaderArgs {
    /// The node that is to lead; left out, the one whose disk has most of the log.
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(1..))]
    to: Option<u16>,
    /// The cell.
    #[arg(long, value_name = "ID", default_value_t = 0)]
    cell: u16,
    /// Print JSON; 64-bit numbers as strings.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: Cluster,
}

pub(super) async fn run(args: TransferLeaderArgs) -> Result<u8, Error> {
    let (cell, to) = (CellId(args.cell), args.to.map(NodeId));
    let (mut first, mut patience_end) = (None, None);
    let (from, (leader, term)) = loop {
        let (address, leading) = status::wait_for_leader(&args.cluster, cell).await?;
        let from = *first.get_or_insert(leading.node);
        // Somebody else may have moved it meanwhile: once more would be too much.
        if to.map_or(leading.node != from, |to| leading.node == to) {
            break (from, (leading.node, leading.term));
        }
        let patience_end = *patience_end.get_or_insert_with(|| Instant::now() + status::MOMENT);
        match transfer_leader(&address, cell, to, args.cluster.timeout).await {
            Err(Error::Refused { status: Status::NoQuorum, .. }) if Instant::now() < patience_end => {
                tokio::time::sleep(status::AGAIN).await;
            }
            moved => break (from, moved?),
        }
    };
    if args.json {
        let json = json!({ "cell": cell.0, "from": from.0, "leader": leader.0, "term": term.to_string() });
        print(&json.to_string());
    } else {
        print(&describe(cell, from, leader, term));
    }
    if to.is_some_and(|to| to != leader) {
        complain("another member was quicker than the one that was asked for");
        return Ok(exit::FAILED);
    }
    Ok(0)
}

fn describe(cell: CellId, from: NodeId, leader: NodeId, term: Term) -> String {
    if leader == from {
        return format!("cell {cell}: node {leader} leads already, in term {term}");
    }
    format!("cell {cell}: node {leader} leads in term {term}, in place of node {from}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leads_is_said_with_who_led() {
        let text = describe(CellId(0), NodeId(1), NodeId(3), Term(7));
        assert_eq!(text, "cell 0: node 3 leads in term 7, in place of node 1");
        let text = describe(CellId(0), NodeId(3), NodeId(3), Term(7));
        assert_eq!(text, "cell 0: node 3 leads already, in term 7");
    }
}
