//! `postrider feed on|off|list`: which products' events go to the bus.

use anyhow::ensure;
use clap::Subcommand;
use schemas::Environment;
use sqlx::PgConnection;

use crate::{
    invocation::audit,
    key::{environment, product},
    operator::{CommandOutput, list_records},
};

/// Which products' events go to the bus.
#[derive(Debug, Subcommand)]
pub enum FeedCommand {
    /// Publishes the product's events from now on: of all tenants it is linked to. Processes know within seconds.
    On(Feed),
    /// Publishes no more of them. What is on the bus stays there for its seven days.
    Off(Feed),
    /// The feeds that are on.
    List,
}

#[derive(Debug, clap::Args)]
pub struct Feed {
    /// The product's slug.
    #[arg(value_parser = product)]
    product: String,
    /// production or sandbox.
    #[arg(value_parser = environment)]
    environment: Environment,
}

pub async fn run(db: &mut PgConnection, command: FeedCommand) -> anyhow::Result<CommandOutput> {
    match command {
        FeedCommand::On(feed) => switch_on(db, &feed.product, feed.environment).await?,
        FeedCommand::Off(feed) => switch_off(db, &feed).await?,
        FeedCommand::List => {}
    }
    list(db).await
}

/// Turns a feed on, if it is not.
pub async fn switch_on(db: &mut PgConnection, product: &str, environment: Environment) -> anyhow::Result<()> {
    let switched = sqlx::query!(
        "insert into event_feeds (product, environment) values ($1, $2) on conflict do nothing",
        product,
        environment.as_str()
    )
    .execute(&mut *db)
    .await?
    .rows_affected();
    if switched > 0 {
        audit(db, None, "feed.on", format!("{product} {environment}")).await?;
    }
    Ok(())
}

async fn switch_off(db: &mut PgConnection, feed: &Feed) -> anyhow::Result<()> {
    let switched = sqlx::query!(
        "delete from event_feeds where product = $1 and environment = $2",
        feed.product,
        feed.environment.as_str()
    )
    .execute(&mut *db)
    .await?
    .rows_affected();
    ensure!(switched > 0, "{} has no feed in {}", feed.product, feed.environment);
    Ok(audit(db, None, "feed.off", format!("{} {}", feed.product, feed.environment)).await?)
}

async fn list(db: &mut PgConnection) -> anyhow::Result<CommandOutput> {
    let query = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (select product, environment, created_at as on_since from event_feeds) r
           order by product, environment"#
    );
    list_records(db, query, &["product", "environment", "on_since"]).await
}
