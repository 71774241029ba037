//! What the host's kernel is set to: clock, frequency, memory, network.
//!
//! Invariant: reads only. A file that is not there is an unknown, not a fault.

use std::collections::BTreeSet;
use std::fs;

use crate::{Observation, Standing};

pub(crate) fn observe() -> Vec<Observation> {
    vec![governor(), clocksource(), hugepages(), backlog()]
}

fn setting(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn governor() -> Observation {
    let why = "a core that clocks down between requests answers the next one later";
    let mut governors = BTreeSet::new();
    for cpu in 0.. {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
        let Some(governor) = setting(&path) else { break };
        governors.insert(governor);
    }
    if governors.is_empty() {
        let seen = "no frequency scaling is visible (usual in a virtual machine)";
        return Observation::new("cpu governor", Standing::Unknown, seen, why, None);
    }
    let is_performance = governors.iter().all(|governor| governor == "performance");
    let seen = governors.into_iter().collect::<Vec<_>>().join(", ");
    if is_performance {
        Observation::new("cpu governor", Standing::Fine, seen, why, None)
    } else {
        let advice = "if latency matters more than power: cpupower frequency-set -g performance";
        Observation::new("cpu governor", Standing::WorthALook, seen, why, Some(advice))
    }
}

fn clocksource() -> Observation {
    let why =
        "every turn of the loop reads the clock; some sources answer in user space, others need the kernel";
    match setting("/sys/devices/system/clocksource/clocksource0/current_clocksource") {
        None => Observation::new("clock source", Standing::Unknown, "not visible", why, None),
        Some(source)
            if matches!(
                source.as_str(),
                "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter"
            ) =>
        {
            Observation::new("clock source", Standing::Fine, source, why, None)
        }
        Some(source) => {
            let advice = "see why the kernel does not trust the TSC (dmesg | grep -i tsc)";
            Observation::new("clock source", Standing::WorthALook, source, why, Some(advice))
        }
    }
}

fn hugepages() -> Observation {
    let why = "with `always` the kernel may stop a thread for a moment to join pages, and memory use grows in steps of 2 MiB";
    match setting("/sys/kernel/mm/transparent_hugepage/enabled") {
        None => Observation::new("transparent hugepages", Standing::Unknown, "not visible", why, None),
        Some(seen) if seen.contains("[always]") => {
            let advice = "if pauses show at p99.9, compare with: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
            Observation::new("transparent hugepages", Standing::WorthALook, seen, why, Some(advice))
        }
        Some(seen) => Observation::new("transparent hugepages", Standing::Fine, seen, why, None),
    }
}

fn backlog() -> Observation {
    let why =
        "it caps how many connections may wait to be accepted; after a restart all clients come back at once";
    match setting("/proc/sys/net/core/somaxconn") {
        None => Observation::new("net.core.somaxconn", Standing::Unknown, "not visible", why, None),
        Some(seen) => {
            let advice = "raise it above the number of clients that may reconnect in one instant: sysctl -w net.core.somaxconn=...";
            Observation::new("net.core.somaxconn", Standing::Fine, seen, why, Some(advice))
        }
    }
}
