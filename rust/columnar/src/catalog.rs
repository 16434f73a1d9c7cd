//! Reads catalogs from record batches and writes them back.

use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, BooleanArray, Int32Array, RecordBatch, TimestampMicrosecondArray};
use arrow_schema::SchemaRef;
use ssbroker_core::{Catalog, CatalogBuilder, Invalid, RouteRow, Seed, Settings};

use crate::arrays::{guids, texts};
use crate::columns::Source;
use crate::error::{Error, Result, internal};
use crate::schema::{databases, databases_schema, routes, routes_schema, services, services_schema};
use crate::wire::TIMESTAMP_MAX;

/// The start of the year 1, in microseconds since 1970. Python cannot represent times before it, or after
/// `TIMESTAMP_MAX`: such lifetimes are moved to these limits.
const TIMESTAMP_MIN: i64 = -62_135_596_800_000_000;

/// The tables of a catalog.
#[derive(Debug, Default)]
pub struct CatalogTables {
    /// `sys.routes` of all databases.
    pub routes: Vec<RecordBatch>,
    /// `sys.databases`.
    pub databases: Vec<RecordBatch>,
    /// `sys.services` of all databases.
    pub services: Vec<RecordBatch>,
}

/// Reads and validates a catalog.
///
/// # Errors
/// A column is missing or has the wrong type, or a value is invalid.
pub fn read_catalog(tables: &CatalogTables, settings: Settings, seed: Seed) -> Result<Catalog> {
    let mut builder = CatalogBuilder::new(seed, settings)?;
    for source in sources(&tables.databases, "databases.") {
        read_databases(&mut builder, source)?;
    }
    builder.reserve(tables.routes.iter().map(RecordBatch::num_rows).sum());
    for source in sources(&tables.routes, "routes.") {
        read_routes(&mut builder, source)?;
    }
    builder.finish_routes()?;
    for source in sources(&tables.services, "services.") {
        read_services(&mut builder, source)?;
    }
    Ok(builder.finish())
}

fn sources<'a>(batches: &'a [RecordBatch], table: &'static str) -> impl Iterator<Item = Source<'a>> {
    batches.iter().scan(0, move |rows, batch| {
        let first_row = *rows;
        *rows += batch.num_rows();
        Some(Source { batch, table, first_row, invalid_rows: None })
    })
}

fn read_databases(builder: &mut CatalogBuilder, source: Source<'_>) -> Result<()> {
    source.reject_duplicates(&databases::ALL)?;
    let names = source.text(databases::NAME)?;
    let brokers = source.guids(databases::SERVICE_BROKER_GUID)?;
    let enabled = source.booleans(databases::IS_BROKER_ENABLED)?;
    for row in 0..source.batch.num_rows() {
        let name = source.text_at(databases::NAME, &names, row)?;
        let broker = brokers.as_ref().map(|brokers| brokers.optional(row)).transpose()?.flatten();
        let enabled = enabled.as_ref().is_none_or(|enabled| enabled.value(row));
        builder.database(source.first_row + row, name, broker, enabled)?;
    }
    Ok(())
}

fn read_routes(builder: &mut CatalogBuilder, source: Source<'_>) -> Result<()> {
    source.reject_duplicates(&routes::ALL)?;
    let in_database = source.optional_text(routes::DATABASE)?;
    let names = source.text(routes::NAME)?;
    let ids = source.integers::<Int32Type>(routes::ROUTE_ID)?;
    let remote = source.optional_text(routes::REMOTE_SERVICE_NAME)?;
    let brokers = source.guids(routes::BROKER_INSTANCE)?;
    let lifetimes = source.timestamps(routes::LIFETIME)?;
    let lifetime = |row: usize| lifetimes.as_ref()?[row].map(|at| at.clamp(TIMESTAMP_MIN, TIMESTAMP_MAX));
    let addresses = source.text(routes::ADDRESS)?;
    let mirrors = source.optional_text(routes::MIRROR_ADDRESS)?;
    if in_database.is_none() {
        let missing =
            |invalid: Invalid| Error::Schema { column: invalid.column, expected: invalid.expected, actual: None };
        builder.use_single_database().map_err(missing)?;
    }
    let optional = |name, view: &Option<_>, row| match view {
        Some(view) => source.optional_text_at(name, view, row),
        None => Ok(None),
    };
    for row in 0..source.batch.num_rows() {
        let input = ssbroker_core::RouteInput {
            database: optional(routes::DATABASE, &in_database, row)?,
            name: source.text_at(routes::NAME, &names, row)?,
            route_id: ids.as_ref().and_then(|ids| ids[row]),
            service: optional(routes::REMOTE_SERVICE_NAME, &remote, row)?,
            broker: brokers.as_ref().map(|brokers| brokers.optional(row)).transpose()?.flatten(),
            expires: lifetime(row).unwrap_or(ssbroker_core::NEVER),
            address: source.text_at(routes::ADDRESS, &addresses, row)?,
            mirror: optional(routes::MIRROR_ADDRESS, &mirrors, row)?,
        };
        builder.route(source.first_row + row, input)?;
    }
    Ok(())
}

fn read_services(builder: &mut CatalogBuilder, source: Source<'_>) -> Result<()> {
    source.reject_duplicates(&services::ALL)?;
    let in_database = source.text(services::DATABASE)?;
    let names = source.text(services::NAME)?;
    for row in 0..source.batch.num_rows() {
        let database = source.text_at(services::DATABASE, &in_database, row)?;
        let name = source.text_at(services::NAME, &names, row)?;
        builder.service(source.first_row + row, database, name)?;
    }
    Ok(())
}

/// Returns the routes of a catalog, in input order.
///
/// # Errors
/// A text is not valid UTF-8, or the texts of a column exceed 2 GiB.
pub fn routes_batch(catalog: &Catalog) -> Result<RecordBatch> {
    let rows = catalog.routes();
    let name_of = |route: &RouteRow| (route.service != ssbroker_core::NONE).then(|| catalog.name(route.service));
    let database = |route: &RouteRow| &*catalog.databases()[usize::from(route.database)].name;
    let lifetimes = rows.iter().map(|route| (route.expires != ssbroker_core::NEVER).then_some(route.expires));
    let columns: Vec<ArrayRef> = vec![
        texts(routes::DATABASE, rows.iter().map(|route| Some(database(route))))?,
        texts(routes::NAME, (0..rows.len()).map(|row| Some(catalog.route_name(row))))?,
        Arc::new(Int32Array::from_iter_values(rows.iter().map(|route| route.route_id))),
        texts(routes::REMOTE_SERVICE_NAME, rows.iter().map(name_of))?,
        guids(rows.iter().map(|route| route.broker))?,
        Arc::new(lifetimes.collect::<TimestampMicrosecondArray>().with_timezone("UTC")),
        texts(routes::ADDRESS, rows.iter().map(|route| Some(catalog.address_text(route))))?,
        texts(routes::MIRROR_ADDRESS, rows.iter().map(|route| catalog.mirror_text(route)))?,
    ];
    batch(routes_schema(), columns)
}

/// Returns the databases of a catalog: the given databases, databases that only routes name, and `msdb`.
///
/// # Errors
/// A text is not valid UTF-8, or the texts of a column exceed 2 GiB.
pub fn databases_batch(catalog: &Catalog) -> Result<RecordBatch> {
    let rows = catalog.databases();
    let columns: Vec<ArrayRef> = vec![
        texts(databases::NAME, rows.iter().map(|row| Some(&*row.name)))?,
        guids(rows.iter().map(|row| row.broker))?,
        Arc::new(rows.iter().map(|row| Some(row.enabled)).collect::<BooleanArray>()),
    ];
    batch(databases_schema(), columns)
}

/// Returns the services of a catalog, in input order.
///
/// # Errors
/// A text is not valid UTF-8, or the texts of a column exceed 2 GiB.
pub fn services_batch(catalog: &Catalog) -> Result<RecordBatch> {
    let rows = catalog.services();
    let database = |number: u16| &*catalog.databases()[usize::from(number)].name;
    let columns: Vec<ArrayRef> = vec![
        texts(services::DATABASE, rows.iter().map(|&(number, _)| Some(database(number))))?,
        texts(services::NAME, rows.iter().map(|&(_, name)| Some(catalog.name(name))))?,
    ];
    batch(services_schema(), columns)
}

fn batch(schema: SchemaRef, columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    debug_assert!(columns.iter().all(|column| column.len() == columns[0].len()));
    RecordBatch::try_new(schema, columns).map_err(|error| internal(&error))
}
