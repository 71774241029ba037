//! Questions that any member answers, leader or not, without a session.
//!
//! Invariant: each is asked of exactly the members named, and no hint is followed.

use std::sync::Arc;
use std::time::Duration;

use lockstep_wire::CellId;

use crate::client::{call_timeout_ms, seed};
use crate::core::{ClientConfig, Outcome, RouteInfo, StatusInfo};
use crate::driver::{Command, Read, start};
use crate::error::Error;
use crate::session::odd;

/// Asks one member how a cell is, as that member knows it.
pub async fn status_of(endpoint: &str, cell: CellId, timeout: Duration) -> Result<StatusInfo, Error> {
    let what = format!("asking {endpoint} for the status of cell {cell}");
    match ask(vec![endpoint.to_owned()], cell, timeout, Read::Status, &what).await? {
        Outcome::Status(status) => Ok(status),
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
    match ask(endpoints, cell, timeout, Read::Routes, &what).await? {
        Outcome::Routes(routes) => Ok(routes),
        other => Err(odd(&what, &other)),
    }
}

async fn ask(
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
    let config = ClientConfig {
        is_pinned: true,
        call_timeout_ms: call_timeout_ms(timeout),
        ..ClientConfig::new(cell, endpoints, "probe", seed()?)
    };
    let handles = start(vec![config], &Arc::from([]))?;
    let handle = &handles[0];
    handle.ask(what, |answer| Command::Read { read, answer, what: what.to_owned() }).await
}
