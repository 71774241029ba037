//! Shrinking: from a run that breaks a rule to a smaller one that breaks the same rule.
//!
//! Invariant: whatever is returned has been run and has broken that rule; the number of runs is bounded. Deliberately
//! absent: the shortest run of all; every knob is turned down as far as the others stand.

use crate::knob::{Knob, Setting};
use crate::search::{Failure, run_plan};
use crate::world::plan::Plan;
use crate::world::trace::Trace;

/// Runs that a shrinking takes at most.
const RUNS_MAX: u32 = 200;
/// Times that all knobs are gone through at most.
const ROUNDS_MAX: u32 = 4;

/// Turns one knob after the other down while a plan goes on breaking the rule of `failure`; says how the
/// smaller run fails. `show` is told of every success.
pub fn shrink(
    plan: &Plan,
    settings: &[Setting],
    failure: Failure,
    show: &mut dyn FnMut(&[Setting]),
) -> Failure {
    let mut shrinking = Shrinking { drawn: plan, settings: settings.to_vec(), failure, runs: 0 };
    for _ in 0..ROUNDS_MAX {
        let mut has_shrunk = false;
        for knob in Knob::all() {
            if shrinking.turn_down(knob) {
                has_shrunk = true;
                show(&shrinking.settings);
            }
        }
        if !has_shrunk {
            break;
        }
    }
    shrinking.failure
}

struct Shrinking<'p> {
    drawn: &'p Plan,
    settings: Vec<Setting>,
    failure: Failure,
    runs: u32,
}

impl Shrinking<'_> {
    /// Looks for a small value at which the rule is still broken: the least one, else by halves.
    fn turn_down(&mut self, knob: &'static Knob) -> bool {
        let (mut fails, mut holds) = (knob.read(&self.plan(None)), knob.least);
        if fails <= holds {
            return false;
        }
        if self.still_fails(Setting { knob, value: holds }) {
            return true;
        }
        let mut has_shrunk = false;
        // A run is another one at every value; halving finds a smaller one without a promise that it is the smallest.
        while fails - holds > 1 {
            let middle = holds + (fails - holds) / 2;
            if self.still_fails(Setting { knob, value: middle }) {
                has_shrunk = true;
                fails = middle;
            } else {
                holds = middle;
            }
            if fails - holds <= fails / 8 {
                break;
            }
        }
        has_shrunk
    }

    fn still_fails(&mut self, setting: Setting) -> bool {
        if self.runs >= RUNS_MAX {
            return false;
        }
        self.runs += 1;
        let plan = self.plan(Some(setting));
        match run_plan(&plan, Trace::silent()) {
            Err(failure) if failure.violation.rule == self.failure.violation.rule => {
                self.settings.retain(|other| other.knob.name != setting.knob.name);
                self.settings.push(setting);
                self.failure = Failure { settings: self.settings.clone(), ..failure };
                true
            }
            Ok(_) | Err(_) => false,
        }
    }

    fn plan(&self, more: Option<Setting>) -> Plan {
        let mut plan = self.drawn.clone();
        self.settings.iter().chain(&more).for_each(|setting| setting.apply(&mut plan));
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::defect::Defect;
    use crate::world::schedule::MS;

    #[test]
    fn a_smaller_run_breaks_the_same_rule_and_says_how_it_was_made() {
        let mut failing = (1..60).filter_map(|seed| {
            let mut plan = Plan::quiet(seed);
            plan.defect = Some(Defect::DurableBeforeWritten);
            plan.nodes = 1;
            plan.disk_latency_mean = 5 * MS;
            plan.faults.power_losses = true;
            plan.faults.gap_mean = Some(700 * MS);
            run_plan(&plan, Trace::silent()).err().map(|failure| (plan, failure))
        });
        let (plan, failure) = failing.next().expect("the defect is seen");
        let small = shrink(&plan, &[], failure.clone(), &mut |_| {});
        assert_eq!(small.violation.rule, failure.violation.rule);
        let mut again = plan.clone();
        small.settings.iter().for_each(|setting| setting.apply(&mut again));
        assert!(again.safety < plan.safety / 2, "{:?}", small.settings);
        let replayed = run_plan(&again, Trace::silent()).expect_err("it is what was run");
        assert_eq!(replayed.violation, small.violation);
        assert!(small.to_string().contains("--set safety_ms="), "{small}");
    }
}
