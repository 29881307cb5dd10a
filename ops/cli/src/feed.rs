//! `postrider feed on|off|list`: which products' events go to the bus.

use anyhow::bail;
use clap::Subcommand;
use schemas::{Environment, key};
use sqlx::PgPool;

use crate::{
    invocation::audit,
    key::environment,
    operator::{self, DatabaseArgs},
};

/// Products' events on the bus, for systems that subscribe there (`mail.v1.event.<product>.<environment>.<type>`).
#[derive(Debug, clap::Args)]
pub struct FeedArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(subcommand)]
    command: FeedCommand,
}

#[derive(Debug, Subcommand)]
enum FeedCommand {
    /// Publishes the product's events from now on: of all tenants it is linked to. Processes know within seconds.
    On(Feed),
    /// Publishes no more of them. What is on the bus stays there for its seven days.
    Off(Feed),
    /// The feeds that are on.
    List,
}

#[derive(Debug, clap::Args)]
struct Feed {
    /// The product's slug.
    product: String,
    /// production or sandbox.
    #[arg(value_parser = environment)]
    environment: Environment,
}

pub async fn run(args: FeedArgs) -> anyhow::Result<()> {
    let pool = args.database.pool()?;
    match args.command {
        FeedCommand::On(feed) => switch_on(&pool, &feed.product, feed.environment).await?,
        FeedCommand::Off(feed) => switch_off(&pool, &feed).await?,
        FeedCommand::List => {}
    }
    list(&pool).await
}

/// Turns a feed on, if it is not.
pub async fn switch_on(pool: &PgPool, product: &str, environment: Environment) -> anyhow::Result<()> {
    if !key::is_slug(product) {
        bail!("a product's slug is 2 to 32 of a-z, 0-9 and dashes inside");
    }
    let mut tx = pool.begin().await?;
    let switched = sqlx::query!(
        "insert into event_feeds (product, environment) values ($1, $2) on conflict do nothing",
        product,
        environment.as_str()
    )
    .execute(&mut *tx)
    .await?
    .rows_affected();
    if switched > 0 {
        audit(&mut tx, None, "feed.on", &format!("{product} {environment}")).await?;
    }
    tx.commit().await?;
    Ok(())
}

async fn switch_off(pool: &PgPool, feed: &Feed) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    let switched = sqlx::query!(
        "delete from event_feeds where product = $1 and environment = $2",
        feed.product,
        feed.environment.as_str()
    )
    .execute(&mut *tx)
    .await?
    .rows_affected();
    if switched == 0 {
        bail!("{} has no feed in {}", feed.product, feed.environment);
    }
    audit(&mut tx, None, "feed.off", &format!("{} {}", feed.product, feed.environment)).await?;
    tx.commit().await?;
    Ok(())
}

async fn list(pool: &PgPool) -> anyhow::Result<()> {
    let records = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (select product, environment, created_at as on_since from event_feeds) r
           order by product, environment"#
    )
    .fetch_all(pool)
    .await?;
    operator::print(&records, &["product", "environment", "on_since"]);
    Ok(())
}
