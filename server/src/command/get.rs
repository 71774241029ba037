//! `lockstep get`: who holds a lock, and who waits for it.
//!
//! Invariant: what is shown was so at one revision, which is shown too.

use clap::Args;
use lockstep_client::Error;
use lockstep_client::core::LockInfo;
use serde_json::{Value, json};

use super::{Cluster, QUIET, print};

/// Show who holds a lock and who waits for it.
#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    /// The lock, /ls/<namespace>/...
    name: String,
    /// Print JSON; 64-bit numbers as strings.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: Cluster,
}

pub(super) async fn run(args: GetArgs) -> Result<u8, Error> {
    let client = args.cluster.connect().await?;
    let lock = client.get(&args.name).await?;
    print(&if args.json { as_json(&args.name, &lock).to_string() } else { describe(&args.name, &lock) });
    Ok(0)
}

fn describe(name: &str, lock: &LockInfo) -> String {
    let mut text = match lock.holders_total {
        0 => format!("{name} is free; every token granted so far is at most {}\n", lock.fence_floor),
        1 => format!("{name} is held {}\n", lock.mode.name()),
        count => format!("{name} is held {} by {count}\n", lock.mode.name()),
    };
    for holder in &lock.holders {
        let (client, token, fence) = (&holder.client_id, holder.token, holder.fence);
        text += &format!("  holder   {client}  token {token}  fence {fence}  session {}\n", holder.session);
        if !holder.data.is_empty() {
            text += &format!("           data {:?}\n", String::from_utf8_lossy(&holder.data));
        }
    }
    text += &rest(lock.holders_total, lock.holders.len());
    for waiter in &lock.waiters {
        let (place, client, mode) = (waiter.position, &waiter.client_id, waiter.mode.name());
        text += &format!("  waiting  {place}. {client}  {mode}  session {}\n", waiter.session);
    }
    text += &rest(lock.waiters_total, lock.waiters.len());
    if lock.is_quiet {
        text += &format!("  its cell {QUIET}\n");
    }
    text + &format!("  revision {}\n", lock.revision)
}

fn rest(total: u32, listed: usize) -> String {
    match u64::from(total).saturating_sub(listed as u64) {
        0 => String::new(),
        more => format!("           and {more} more\n"),
    }
}

fn as_json(name: &str, lock: &LockInfo) -> Value {
    let is_held = lock.holders_total > 0;
    let holders: Vec<Value> = lock
        .holders
        .iter()
        .map(|holder| {
            json!({
                "client_id": holder.client_id,
                "session": holder.session.to_string(),
                "owner": holder.owner.to_string(),
                "acquire_id": holder.acquire_id.to_string(),
                "token": holder.token.to_string(),
                "fence": holder.fence.to_string(),
                "data": String::from_utf8_lossy(&holder.data),
            })
        })
        .collect();
    let waiters: Vec<Value> = lock
        .waiters
        .iter()
        .map(|waiter| {
            json!({
                "client_id": waiter.client_id,
                "session": waiter.session.to_string(),
                "owner": waiter.owner.to_string(),
                "acquire_id": waiter.acquire_id.to_string(),
                "mode": waiter.mode.name(),
                "position": waiter.position,
            })
        })
        .collect();
    json!({
        "name": name,
        "revision": lock.revision.to_string(),
        "held": is_held,
        "mode": is_held.then(|| lock.mode.name()),
        "quiet": lock.is_quiet,
        "fence_floor": (!is_held).then(|| lock.fence_floor.to_string()),
        "holders_total": lock.holders_total,
        "holders": holders,
        "waiters_total": lock.waiters_total,
        "waiters": waiters,
    })
}

#[cfg(test)]
mod tests {
    use lockstep_client::core::{Holder, Waiter};
    use lockstep_wire::request::Mode;
    use lockstep_wire::{FencingToken, Owner, RequestId, Revision, SessionId};

    use super::*;

    fn lock() -> LockInfo {
        LockInfo {
            revision: Revision(40),
            exists: true,
            mode: Mode::Exclusive,
            fence_floor: FencingToken(0),
            is_quiet: false,
            holders_total: 1,
            waiters_total: 3,
            holders: vec![Holder {
                session: SessionId(12),
                owner: Owner(u64::MAX),
                acquire_id: RequestId(1),
                token: FencingToken(1 << 60),
                fence: FencingToken(1 << 60),
                client_id: "alpha/77".to_owned(),
                data: b"here".to_vec(),
            }],
            waiters: vec![Waiter {
                session: SessionId(15),
                owner: Owner(1),
                acquire_id: RequestId(2),
                mode: Mode::Shared,
                position: 1,
                client_id: "beta/8".to_owned(),
            }],
        }
    }

    #[test]
    fn a_lock_is_described_with_its_line() {
        let text = describe("/ls/a/b", &lock());
        let wanted = "/ls/a/b is held exclusive
  holder   alpha/77  token 1152921504606846976  fence 1152921504606846976  session 12
           data \"here\"
  waiting  1. beta/8  shared  session 15
           and 2 more
  revision 40
";
        assert_eq!(text, wanted);
        let free =
            LockInfo { holders_total: 0, holders: vec![], waiters_total: 0, waiters: vec![], ..lock() };
        assert!(describe("/ls/a/b", &free).starts_with("/ls/a/b is free;"));
        let quiet = describe("/ls/a/b", &LockInfo { is_quiet: true, ..free });
        assert!(quiet.contains("  its cell was restored and grants nothing yet"), "{quiet}");
    }

    #[test]
    fn numbers_of_64_bits_are_strings_in_json() {
        let json = as_json("/ls/a/b", &lock());
        assert_eq!(json["holders"][0]["token"], "1152921504606846976");
        assert_eq!(json["holders"][0]["owner"], u64::MAX.to_string());
        assert_eq!(json["waiters"][0]["position"], 1);
        assert_eq!(json["fence_floor"], Value::Null);
    }
}
