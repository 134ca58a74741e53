library ieee;
use ieee.std_logic_1164.all;
use ieee.numeric_std.all;

-- A queue of DEPTH samples: a pipeline register when DEPTH is 1. Empty after a reset, latency 1.
-- It accepts a sample in the cycle in which it hands one on, so a full one does not stop the stream; with SKID it does not, and
-- in_ready depends on no out_ready: there the path of ready signals through a row of registers ends. A DEPTH of 2 keeps it at full speed.
entity lutetia_register is
    generic (WIDTH : positive := 1; DEPTH : positive := 1; SKID : natural := 0);
    port (
        clk, rst : in std_logic;
        in_data : in std_logic_vector(WIDTH - 1 downto 0);
        in_valid : in std_logic;
        in_ready : out std_logic;
        out_data : out std_logic_vector(WIDTH - 1 downto 0);
        out_valid : out std_logic;
        out_ready : in std_logic
    );
end entity;

architecture behaviour of lutetia_register is
begin
    skid_buffer : if DEPTH = 2 and SKID /= 0 generate
        -- All that is seen from outside comes from flip-flops: the oldest sample, whether there is one, whether two.
        signal data, spill : std_logic_vector(WIDTH - 1 downto 0);
        signal full, spilled : std_logic := '0';
    begin
        in_ready <= not spilled;
        out_valid <= full;
        out_data <= data;
        process (clk) begin
            if rising_edge(clk) then
                if rst = '1' then
                    full <= '0';
                    spilled <= '0';
                else
                    full <= in_valid or spilled or (full and not out_ready);
                    spilled <= full and not out_ready and (in_valid or spilled);
                end if;
                if full = '0' or out_ready = '1' then
                    if spilled = '1' then
                        data <= spill;
                    else
                        data <= in_data;
                    end if;
                end if;
                if spilled = '0' then
                    spill <= in_data;
                end if;
            end if;
        end process;
    end generate;
    any_queue : if DEPTH /= 2 or SKID = 0 generate
        type queue is array (0 to DEPTH - 1) of std_logic_vector(WIDTH - 1 downto 0);
        signal data : queue;
        signal first, last : natural range 0 to DEPTH - 1 := 0;
        signal held : natural range 0 to DEPTH := 0;
        signal push, pop, ready, some : std_logic;
    begin
        ready <= '1' when held /= DEPTH else out_ready when SKID = 0 else '0';
        some <= '1' when held /= 0 else '0';
        push <= in_valid and ready;
        pop <= some and out_ready;
        in_ready <= ready;
        out_valid <= some;
        out_data <= data(first);
        process (clk) begin
            if rising_edge(clk) then
                if rst = '1' then
                    first <= 0;
                    last <= 0;
                    held <= 0;
                else
                    if push = '1' then
                        data(last) <= in_data;
                        last <= (last + 1) mod DEPTH;
                    end if;
                    if pop = '1' then
                        first <= (first + 1) mod DEPTH;
                    end if;
                    if push = '1' and pop = '0' then
                        held <= held + 1;
                    elsif pop = '1' and push = '0' then
                        held <= held - 1;
                    end if;
                end if;
            end if;
        end process;
    end generate;
end architecture;
