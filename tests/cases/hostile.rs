//! Input that nobody should send.

use crate::attack::Attack;
use crate::support::framework::runtime;
use crate::support::{Dice, Site};

// Case 113, light.
#[test]
fn hostile_bytes_on_every_rpc_end_no_process() {
    let mut site = Site::cluster();
    let dice = Dice::new();
    let batch = {
        let list = site.json(&["framework", "list"]);
        let row = list
            .find("name", "batch")
            .expect("the batch framework")
            .clone();
        row["service_address"]
            .as_str()
            .expect("its address")
            .to_owned()
    };
    let node = {
        let list = site.json(&["node", "list"]);
        let row = list
            .find("name", &site.node("n1"))
            .expect("the node")
            .clone();
        row["node_address"]
            .as_str()
            .expect("its address")
            .to_owned()
    };
    let before: Vec<u32> = ["master", "n1", "batch"]
        .into_iter()
        .map(|name| site.daemon(name).pid())
        .collect();
    let sent = runtime().block_on(async {
        let mut attack = Attack::new(dice);
        let mut sent = 0;
        for (address, packages) in [
            (
                site.address(),
                &["framework", "admin", "agent", "explain", "events"][..],
            ),
            (&node, &["node"][..]),
            (&batch, &["batch"][..]),
        ] {
            sent += attack.run(address, packages, 60).await;
        }
        sent
    });
    assert!(sent > 1_500, "only {sent} calls were sent");
    for (name, pid) in ["master", "n1", "batch"].into_iter().zip(before) {
        let said = site.daemon(name).alive().expect("it lives");
        assert!(!said.contains("panicked"), "{name} panicked: {said}");
        assert_eq!(site.daemon(name).pid(), pid);
    }
    let answer = site.mete(&["run", "--cpus", "0.1", "--", "echo", "still here"]);
    assert_eq!(answer.done(), "still here");
    // What got in must not keep the master from starting again.
    site.kill("master");
    site.restart("master");
    site.wait_for_master();
    site.wait_for_node("n1", "ready");
    let answer = site.mete(&["run", "--cpus", "0.1", "--", "echo", "and again"]);
    assert_eq!(answer.done(), "and again");
}
