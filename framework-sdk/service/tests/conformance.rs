//! The service framework through every fault script.

use mete_sdk::{Claim, TaskSpec};
use mete_service::{Service, pool};
use mete_testing::{Expect, conformance};

#[tokio::test(start_paused = true)]
async fn services_survive_every_fault_script() {
    let service = |name: &str, count| Service {
        name: name.to_owned(),
        count,
        claim: Claim::cpus(1).memory_mib(128),
        task: TaskSpec::command(name, ["serve"]),
    };
    let make = || {
        let (_handle, pool) = pool([service("web", 3), service("db", 1)]).expect("good names");
        pool
    };
    conformance(make, Expect::always(4)).await;
}
