//! What is asked of a member without a session: questions that any of them answers, and the one to hand over.
//!
//! Invariant: each is asked of exactly the members named, and no hint is followed.

use std::sync::Arc;
use std::time::Duration;

use lockstep_wire::{CellId, NodeId, Term};

use crate::client::{call_timeout_ms, seed};
use crate::core::{ClientConfig, MemberWish, MembersInfo, Outcome, RouteInfo, StatusInfo};
use crate::driver::{Answer, Command, Read, start};
use crate::error::Error;
use crate::session::odd;

/// Asks one member how a cell is, as that member knows it.
pub async fn status_of(endpoint: &str, cell: CellId, timeout: Duration) -> Result<StatusInfo, Error> {
    let what = format!("asking {endpoint} for the status of cell {cell}");
    match read(vec![endpoint.to_owned()], cell, timeout, Read::Status, &what).await? {
        Outcome::Status(status) => Ok(status),
        other => Err(odd(&what, &other)),
    }
}

/// Asks one member who the members of a cell are, as that member knows it.
pub async fn members_of(endpoint: &str, cell: CellId, timeout: Duration) -> Result<MembersInfo, Error> {
    let what = format!("asking {endpoint} for the members of cell {cell}");
    match read(vec![endpoint.to_owned()], cell, timeout, Read::Members, &what).await? {
        Outcome::Members(members) => Ok(members),
        other => Err(odd(&what, &other)),
    }
}

/// Asks one member, which should lead the cell, to change who the members are. It is asked once; a change that has been made
/// may be asked for again.
pub async fn change_members(
    endpoint: &str,
    cell: CellId,
    wish: MemberWish,
    timeout: Duration,
) -> Result<(), Error> {
    let what = format!("changing the members of cell {cell}");
    let config = config(vec![endpoint.to_owned()], cell, timeout)?;
    let config = ClientConfig { try_timeout_ms: config.call_timeout_ms, ..config };
    match ask(config, &what, |answer| Command::ChangeMembers { wish, answer, what: what.clone() }).await? {
        Outcome::MembersChanged => Ok(()),
        other => Err(odd(&what, &other)),
    }
}

/// Asks the members, one after the other until one answers, which cell serves which namespace. They are asked as
/// members of `cell`.
pub async fn routes_of(
    endpoints: Vec<String>,
    cell: CellId,
    timeout: Duration,
) -> Result<Vec<RouteInfo>, Error> {
    let what = format!("reaching the cluster at {}", endpoints.join(", "));
    match read(endpoints, cell, timeout, Read::Routes, &what).await? {
        Outcome::Routes(routes) => Ok(routes),
        other => Err(odd(&what, &other)),
    }
}

/// Asks one member, which should lead the cell, to hand over to `to`, or to the member whose disk has most of the log.
/// Says who leads then. It is asked once: what a refusal means is for whoever asked.
pub async fn transfer_leader(
    endpoint: &str,
    cell: CellId,
    to: Option<NodeId>,
    timeout: Duration,
) -> Result<(NodeId, Term), Error> {
    let what = match to {
        Some(to) => format!("moving the leadership of cell {cell} to node {to}"),
        None => format!("moving the leadership of cell {cell}"),
    };
    let to = to.unwrap_or_default();
    let config = config(vec![endpoint.to_owned()], cell, timeout)?;
    // Its answer takes an election timeout when nothing comes of it, however long that is; it is not asked twice.
    let config = ClientConfig { try_timeout_ms: config.call_timeout_ms, ..config };
    match ask(config, &what, |answer| Command::TransferLeader { to, answer, what: what.clone() }).await? {
        Outcome::Transferred { leader, term } => Ok((leader, term)),
        other => Err(odd(&what, &other)),
    }
}

async fn read(
    endpoints: Vec<String>,
    cell: CellId,
    timeout: Duration,
    read: Read,
    what: &str,
) -> Result<Outcome, Error> {
    if endpoints.is_empty() {
        let detail = "at least one endpoint is needed".to_owned();
        return Err(Error::Invalid { what: what.to_owned(), detail });
    }
    let config = config(endpoints, cell, timeout)?;
    ask(config, what, |answer| Command::Read { read, answer, what: what.to_owned() }).await
}

fn config(endpoints: Vec<String>, cell: CellId, timeout: Duration) -> Result<ClientConfig, Error> {
    Ok(ClientConfig {
        is_pinned: true,
        call_timeout_ms: call_timeout_ms(timeout),
        ..ClientConfig::new(cell, endpoints, "probe", seed()?)
    })
}

async fn ask(
    config: ClientConfig,
    what: &str,
    command: impl FnOnce(Answer<Outcome>) -> Command,
) -> Result<Outcome, Error> {
    let handles = start(vec![config], &Arc::from([]))?;
    let handle = &handles[0];
    handle.ask(what, command).await
}
