// Reads and changes a table of a SQLite catalog with iceberg-go: peer DATABASE WAREHOUSE TABLE read|append|delete [ROWS|ID].
package main

import (
	"context"
	"log"
	"os"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/sql"
	"github.com/apache/iceberg-go/table"
	"github.com/uptrace/bun/driver/sqliteshim"
)

func main() {
	ctx := context.Background()
	lake, err := catalog.Load(ctx, "local", iceberg.Properties{
		"type":         "sql",
		"uri":          "file:" + os.Args[1],
		sql.DriverKey:  sqliteshim.ShimName,
		sql.DialectKey: string(sql.SQLite),
		"warehouse":    os.Args[2],
	})
	check(err)
	opened, err := lake.LoadTable(ctx, catalog.ToIdentifier(os.Args[3]))
	check(err)
	switch os.Args[4] {
	case "read": // one JSON object per row
		rows, err := opened.Scan().ToArrowTable(ctx)
		check(err)
		batches := array.NewTableReader(rows, -1)
		for batches.Next() {
			check(array.RecordToJSON(batches.RecordBatch(), os.Stdout))
		}
		check(batches.Err())
	case "append": // a JSON array of rows
		schema, err := table.SchemaToArrowSchema(opened.Schema(), nil, true, false)
		check(err)
		rows, err := array.TableFromJSON(memory.DefaultAllocator, schema, []string{os.Args[5]})
		check(err)
		_, err = opened.AppendTable(ctx, rows, 1024, nil)
		check(err)
	case "delete": // the rows with an id
		id, err := strconv.ParseInt(os.Args[5], 10, 64)
		check(err)
		_, err = opened.Delete(ctx, iceberg.EqualTo(iceberg.Reference("id"), id), nil)
		check(err)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
