//! Knobs: what can be turned on a plan by name, so that a run smaller than the one that a seed draws can be found, asked
//! for, and given to somebody else.
//!
//! Invariant: a knob turned to a smaller value makes a run smaller, never larger. Deliberately absent: what has no order
//! from small to large, such as latencies.

use std::fmt;
use std::str::FromStr;

use crate::world::plan::{FaultPlan, Plan};
use crate::world::schedule::MS;

/// Something that can be turned.
#[derive(Clone, Copy)]
pub struct Knob {
    /// How it is called.
    pub name: &'static str,
    /// The least and the most that it can be turned to; what is beyond is no fault that the contract speaks of.
    pub least: u64,
    /// See [`Knob::least`].
    pub most: u64,
    read: fn(&Plan) -> u64,
    turn: fn(&mut Plan, u64),
}

macro_rules! knobs {
    (
        counts { $($count:literal from $least:literal to $most:literal: $($field:ident).+ as $type:ty,)+ }
        faults { $($fault:ident,)+ }
    ) => {
        /// All of them, those first that shorten a run most.
        #[allow(clippy::cast_possible_truncation, reason = "no knob is turned above its most")]
        const KNOBS: &[Knob] = &[
            Knob {
                name: "safety_ms",
                least: 1,
                most: 90_000,
                read: |plan| plan.safety / MS,
                turn: |plan, value| plan.safety = value * MS,
            },
            $(Knob {
                name: $count,
                least: $least,
                most: $most,
                read: |plan| plan.$($field).+ as u64,
                turn: |plan, value| plan.$($field).+ = value as $type,
            },)+
            $(Knob {
                name: stringify!($fault),
                least: 0,
                most: 1,
                read: |plan| u64::from(plan.faults.$fault),
                turn: |plan, value| plan.faults.$fault = value > 0,
            },)+
        ];

        /// The compiler misses a fault that has no knob yet.
        const _: fn(FaultPlan) = |FaultPlan { gap_mean: _, $($fault: _,)+ }| {};
    };
}

knobs! {
    counts {
        "cells" from 1 to 4: cells as u16,
        "clients" from 1 to 50: workload.clients as usize,
        "tasks" from 1 to 8: workload.tasks as usize,
        "sessions" from 1 to 4: workload.sessions as usize,
        "names" from 1 to 8: workload.names as usize,
        "nodes" from 1 to 7: nodes as usize,
        "spares" from 0 to 4: spares as usize,
        "early_spares" from 0 to 4: early_spares as usize,
        "drift_ppm" from 0 to 500: drift_ppm_max as u64,
        "disk_errors_ppm" from 0 to 10000: disk_error_ppm as u32,
        "late_permille" from 0 to 1000: late_permille as u64,
        "outcasts" from 0 to 3: outcasts_max as usize,
        "shared_percent" from 0 to 100: workload.shared_percent as u64,
        "cancel_percent" from 0 to 100: workload.cancel_percent as u64,
        "close_percent" from 0 to 100: workload.close_percent as u64,
        "read_percent" from 0 to 100: workload.read_percent as u64,
        "again_percent" from 0 to 100: workload.again_percent as u64,
        "drop_percent" from 0 to 100: workload.drop_percent as u64,
        "odd_percent" from 0 to 100: workload.odd_percent as u64,
        "forgers" from 0 to 4: forgers as usize,
    }
    faults {
        kills,
        power_losses,
        pauses,
        cuts,
        resets,
        slow_disks,
        client_crashes,
        client_pauses,
        stops,
        late_turns,
        lags,
        full_disks,
        rot,
        wipes,
        clock_rates,
        snapshots,
        births,
        transfers,
        restores,
    }
}

impl Knob {
    /// All of them, those first that shorten a run most.
    pub fn all() -> &'static [Knob] {
        KNOBS
    }

    /// Where it stands.
    pub fn read(&self, plan: &Plan) -> u64 {
        (self.read)(plan)
    }
}

impl fmt::Debug for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Knob {
    fn eq(&self, other: &Knob) -> bool {
        self.name == other.name
    }
}

impl Eq for Knob {}

/// A knob and the value that it is turned to, written `clients=2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Which.
    pub knob: &'static Knob,
    /// To what.
    pub value: u64,
}

impl Setting {
    /// Turns the knob.
    pub fn apply(&self, plan: &mut Plan) {
        (self.knob.turn)(plan, self.value);
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.knob.name, self.value)
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        let (name, value) = text.split_once('=').ok_or("write it as NAME=NUMBER")?;
        let knob = KNOBS.iter().find(|knob| knob.name == name).ok_or_else(|| {
            let names: Vec<&str> = KNOBS.iter().map(|knob| knob.name).collect();
            format!("there is no knob {name}; there are {}", names.join(", "))
        })?;
        let value: u64 = value.parse().map_err(|_| format!("{value} is no number"))?;
        if value < knob.least || value > knob.most {
            return Err(format!("{name} goes from {} to {}", knob.least, knob.most));
        }
        Ok(Setting { knob, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_turns_what_it_reads_and_is_written_as_it_is_read() {
        for knob in Knob::all() {
            let mut plan = Plan::drawn(1);
            let setting: Setting = format!("{}={}", knob.name, knob.least).parse().expect("a setting");
            setting.apply(&mut plan);
            assert_eq!(knob.read(&plan), knob.least, "{knob:?}");
            assert_eq!(setting.to_string(), format!("{}={}", knob.name, knob.least));
        }
    }

    #[test]
    fn what_cannot_be_turned_is_refused_in_words() {
        for (text, words) in [
            ("clients", "NAME=NUMBER"),
            ("clients=0", "from 1"),
            ("clients=many", "no number"),
            ("clients=51", "to 50"),
            ("drift_ppm=501", "to 500"),
            ("moons=1", "there are safety_ms, cells"),
        ] {
            let error = text.parse::<Setting>().expect_err(text);
            assert!(error.contains(words), "{error}");
        }
    }
}
