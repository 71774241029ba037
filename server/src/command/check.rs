//! `lockstep check`: is a fencing token still the current one?
//!
//! Invariant: exit code 0 means that the token named a live hold when the cell answered.

use clap::Args;
use lockstep_client::Error;
use lockstep_wire::FencingToken;
use serde_json::json;

use super::{Cluster, exit, print};

/// Ask whether a fencing token is still the current one; exit code 0 if so, 1 if not.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The lock, /ls/<namespace>/...
    name: String,
    /// The token, as LOCKSTEP_TOKEN has it.
    token: u64,
    /// Print JSON; 64-bit numbers as strings.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: Cluster,
}

pub(super) async fn run(args: CheckArgs) -> Result<u8, Error> {
    let client = args.cluster.connect().await?;
    let checked = client.check(&args.name, FencingToken(args.token)).await?;
    let is_held = checked.latest_token != FencingToken(0);
    if args.json {
        let text = json!({
            "name": args.name,
            "token": args.token.to_string(),
            "current": checked.is_current,
            "latest_token": is_held.then(|| checked.latest_token.to_string()),
            "fence_floor": (!is_held).then(|| checked.fence_floor.to_string()),
        });
        print(&text.to_string());
    } else {
        print(&describe(&args.name, args.token, &checked));
    }
    Ok(if checked.is_current { 0 } else { exit::STALE })
}

fn describe(name: &str, token: u64, checked: &lockstep_client::Checked) -> String {
    if checked.is_current {
        return format!("current: {name} is held under token {token}");
    }
    if checked.latest_token == FencingToken(0) {
        let floor = checked.fence_floor;
        return format!("stale: nobody holds {name}; every token granted so far is at most {floor}");
    }
    format!("stale: {name} is held under token {}, not {token}", checked.latest_token)
}

#[cfg(test)]
mod tests {
    use lockstep_client::Checked;

    use super::*;

    #[test]
    fn a_check_is_described_in_one_line() {
        let mut checked =
            Checked { is_current: true, latest_token: FencingToken(7), fence_floor: FencingToken(0) };
        assert_eq!(describe("/ls/a/b", 7, &checked), "current: /ls/a/b is held under token 7");
        checked.is_current = false;
        assert_eq!(describe("/ls/a/b", 5, &checked), "stale: /ls/a/b is held under token 7, not 5");
        checked.latest_token = FencingToken(0);
        checked.fence_floor = FencingToken(9);
        assert_eq!(
            describe("/ls/a/b", 5, &checked),
            "stale: nobody holds /ls/a/b; every token granted so far is at most 9"
        );
    }
}
