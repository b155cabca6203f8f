//! The smallest complete framework: three tasks that say hi, then it ends itself.
//!
//! Run it against `mete dev`: `cargo run -p mete-sdk --example hello`.

use std::time::Duration;

use mete_sdk::{
    Claim, Connected, Framework, Offers, Result, Runner, Session, TaskSpec, TaskUpdate,
};

struct Hello;

impl Framework for Hello {
    async fn connected(&mut self, s: &Session, _: Connected) -> Result<()> {
        s.want("greetings", Claim::cpus(1).memory_mib(128).count(3))
            .await
    }

    async fn offers(&mut self, _: &Session, offers: &mut Offers) -> Result<()> {
        while let Some(slot) = offers.take("greetings") {
            offers.launch(slot, TaskSpec::command("hello", ["echo", "hi"]));
        }
        Ok(())
    }

    #[expect(clippy::print_stdout, reason = "an example shows what happens")]
    async fn update(&mut self, s: &Session, u: TaskUpdate) -> Result<()> {
        println!("{} {:?} {}", u.task, u.phase, u.message);
        if u.phase.is_terminal() && s.live_tasks() == 0 && s.wanted() == 0 {
            s.teardown().await?;
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    Runner::from_env()?
        .name("hello")
        .role("dev")
        .failover_timeout(Duration::from_secs(600))
        .run(Hello)
        .await
}
